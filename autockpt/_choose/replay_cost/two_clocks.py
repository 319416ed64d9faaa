"""A step on two clocks: the host launches ahead of the device, and the device waits where nothing is queued.

host     ▕launch▕launch▕launch▕ frames ▕launch▕......▕launch▕        the queue is full: the host waits
device         ▕ kernel ▕ kernel ▕ kernel ▕       ▕ kernel ▕          nothing is queued: the device waits
                                           at the host's pace

Forward's operators run in their order, and backward's in the opposite one. A segment runs again as backward comes to
its last operator. Replays in parts are taken to run there together. No torch.
"""

from __future__ import annotations

import bisect
import itertools
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ..._data.hardware.paces import QUEUE, DevicePace, HostPace
from ..index.profile_index import Index
from .effects import PlannedReplay

FORWARD_SHARE = 0.4
"""Share of a segment's own host seconds that falls in forward: 245 of 592 microseconds of a transformer's block
(`benchmarks/host_cost`). The rest comes before its replay."""


class Launches(NamedTuple):
    """Some launches in a row.

    Attributes:
        host_seconds: to launch them.
        device_seconds: of their kernels together.
        kernels: how many; 0 for what the host does by itself.
        waits: whether the host then waits until the device is done.
    """

    host_seconds: float
    device_seconds: float = 0.0
    kernels: int = 0
    waits: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TwoClocks:
    """Where the time of a step goes.

    Attributes:
        step_seconds: until both clocks have ended.
        host_seconds: until the host has launched everything, waiting for a full queue included.
        device_seconds: in which the device computes.
        host_pace_seconds: the part of the step in which the host set the pace. It is what the host took on the way to
            the step's end on which nobody waits: from the end back to what each launch and each kernel waited for.
        kernels: how many were launched.
    """

    step_seconds: float
    host_seconds: float
    device_seconds: float
    host_pace_seconds: float
    kernels: int

    @property
    def is_paced_by_host(self) -> bool:
        """Whether the host sets the pace in more than half of the step."""
        return 2 * self.host_pace_seconds > self.step_seconds


def simulate(
    index: Index,
    replays: Sequence[PlannedReplay],
    host: HostPace,
    device: DevicePace,
    *,
    compared: int | None = None,
    more: Iterable[Launches] = (),
) -> TwoClocks:
    """Return where the time of a step goes that recomputes some segments.

    Args:
        index: the recorded step.
        replays: what runs again; none for the plain step.
        host: how fast the host is.
        device: how fast the device is.
        compared: number of the segment whose replay is compared with its forward; None for none.
        more: what comes after backward.

    Exact for its model; O(kernels).
    """
    return run(itertools.chain(_work(index, replays, host, device, compared), more), device.gap_seconds)


def price(replay: PlannedReplay, host: HostPace, device: DevicePace, share: float) -> float:
    """Return what a replay adds to a step in which so large a share of the host's seconds shows.

    At a share of 1 no plan adds more to a step than the prices of its replays.
    """
    again = _again(replay, host, device)
    computes = again.device_seconds + again.kernels * device.gap_seconds
    return computes + share * (again.host_seconds + replay.host.seconds(host.costs))


def run(work: Iterable[Launches], gap_seconds: float = 0.0) -> TwoClocks:
    """Run launches on both clocks.

    The host may be `QUEUE` launches ahead; a kernel begins when it is launched, and the one before it is done. With
    each time goes how much of the way to it the host took: what came later waited for the longer of two ways.
    """
    host = host_paced = device = device_paced = computed = 0.0
    done = deque([(0.0, 0.0)] * QUEUE, maxlen=QUEUE)
    kernels = 0
    for host_seconds, device_seconds, count, waits in work:
        launching, computing = host_seconds / max(count, 1), device_seconds / max(count, 1) + gap_seconds
        for _ in range(count):
            host, host_paced = host + launching, host_paced + launching
            first, first_paced = done[0]
            if host < first:
                host, host_paced = first, first_paced
            if host > device:
                device, device_paced = host, host_paced
            device += computing
            done.append((device, device_paced))
        if not count:
            host, host_paced = host + launching, host_paced + launching
        kernels += count
        computed += device_seconds
        if waits and host < device:
            host, host_paced = device, device_paced
    return TwoClocks(
        step_seconds=max(host, device),
        host_seconds=host,
        device_seconds=computed,
        host_pace_seconds=host_paced if host > device else device_paced,
        kernels=kernels,
    )


def _work(
    index: Index, replays: Sequence[PlannedReplay], host: HostPace, device: DevicePace, compared: int | None
) -> Iterator[Launches]:
    """Yield a step's launches in the order in which the host makes them."""
    starts, seconds = index.profile.ops.start, index.profile.ops.seconds
    begins: dict[int, list[Launches]] = defaultdict(list)
    ends: dict[int, list[Launches]] = defaultdict(list)
    again: dict[int, list[Launches]] = defaultdict(list)
    for number, replay in enumerate(replays):
        first = bisect.bisect_left(starts, index.nodes[replay.members[0]].enter)
        last = max(bisect.bisect_left(starts, index.nodes[replay.members[-1]].exit) - 1, first)
        own_seconds = replay.host.seconds(host.costs)
        begins[first].append(Launches(FORWARD_SHARE * own_seconds))
        again[last] += [Launches((1 - FORWARD_SHARE) * own_seconds), _again(replay, host, device)]
        if number == compared:
            reads = _comparison(index, replay, host, device)
            ends[last].append(reads)
            again[last].append(reads._replace(waits=True))
    forward, backward = host.forward_kernels, host.forward_kernels * host.backward_kernels
    shares, kernels = _shares(index), _kernels(forward, len(seconds))
    for number, (computes, share) in enumerate(zip(seconds, shares, strict=True)):
        yield from begins.get(number, ())
        launching = share * forward * host.forward_seconds
        yield Launches(launching, computes * device.slowdown, kernels[number])
        yield from ends.get(number, ())
    kernels = _kernels(backward, len(seconds))
    for number, computes in reversed([*enumerate(_backward_seconds(index, device))]):
        yield from again.get(number, ())
        yield Launches(shares[number] * backward * host.backward_seconds, computes, kernels[number])
    if host.optimizer_kernels:
        yield Launches(host.optimizer_seconds, device.optimizer_seconds, host.optimizer_kernels)


def _shares(index: Index) -> list[float]:
    """Return how many times as long as the mean operator each takes of the host; 1 where that is not known.

    Operators of one call are alike. Backward is taken to differ as forward does.
    """
    profile = index.profile
    found, of_call = profile.host, profile.ops.call
    counts = Counter(of_call)
    if found is None or not found.is_known or not counts:
        return [1.0] * len(of_call)
    own = [*found.call_seconds]
    for call, seconds in zip(profile.calls, found.call_seconds, strict=True):
        if call.parent >= 0:
            own[call.parent] -= seconds
    each = {call: max(own[call], 0.0) / count for call, count in counts.items()}
    mean = sum(each[call] * count for call, count in counts.items()) / len(of_call)
    return [each[call] / mean if mean else 1.0 for call in of_call]


def _kernels(each: float, operators: int) -> list[int]:
    """Return how many kernels each of some operators launches, where `each` launches a number that is not whole."""
    until = [int(number * each) for number in range(operators + 1)]
    return [max(later - earlier, 1) for earlier, later in itertools.pairwise(until)]


def _again(replay: PlannedReplay, host: HostPace, device: DevicePace) -> Launches:
    """Return the kernels that run again; one where operators are not known, and seconds are."""
    kernels = replay.host.launched * host.forward_kernels
    computes = replay.device_seconds * device.slowdown
    return Launches(kernels * host.forward_seconds, computes, max(round(kernels), 1))


def _comparison(index: Index, replay: PlannedReplay, host: HostPace, device: DevicePace) -> Launches:
    """Return the kernels that read once what a segment saves."""
    tensors = [index.profile.saves.tensor[i] for i in index.saves_of(replay.members)]
    size = index.total_bytes(tensor for tensor in tensors if tensor >= 0)
    kernels = round(host.compared_kernels * len(tensors))
    return Launches(kernels * host.forward_seconds, size / device.compared_bytes_per_second, kernels)


def _backward_seconds(index: Index, device: DevicePace) -> list[float]:
    """Return what backward takes of the device for each operator of forward, in proportion to that one's seconds."""
    profile = index.profile
    forward = max(call.exit_seconds for call in profile.calls)
    whole = max(profile.plain_seconds - forward, 0.0) * device.backward_slowdown
    total = sum(profile.ops.seconds)
    return [seconds * whole / total if total else 0.0 for seconds in profile.ops.seconds]

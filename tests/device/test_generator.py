"""The generator: a state of seed and offset, apart from the host's."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import torch

from tests.fake_cuda.device import let_draws_meet


def test_what_draws_moves_the_offset_by_four_and_leaves_the_hosts_state() -> None:
    torch.manual_seed(5)
    host = torch.get_rng_state()
    before = torch.cuda.get_rng_state()
    torch.rand(10, device="cuda")
    torch.nn.functional.dropout(torch.ones(10, device="cuda"), 0.5)
    after = torch.cuda.get_rng_state()
    words = [state.view(torch.int64).tolist() for state in (before, after)]
    assert words == [[5, 0], [5, 8]]
    assert torch.equal(host, torch.get_rng_state())


def test_the_hosts_numbers_leave_the_devices_state() -> None:
    before = torch.cuda.get_rng_state()
    torch.rand(10)
    assert torch.equal(before, torch.cuda.get_rng_state())


def test_a_state_that_is_put_back_gives_the_same_numbers_again() -> None:
    torch.manual_seed(5)
    torch.rand(3, device="cuda")
    state = torch.cuda.get_rng_state()
    first, second = (torch.rand(100, device="cuda") for _ in range(2))
    torch.cuda.set_rng_state(state)
    assert torch.equal(torch.rand(100, device="cuda"), first)
    assert not torch.equal(first, second)


def test_the_seed_alone_decides() -> None:
    found = []
    for _ in range(2):
        torch.cuda.manual_seed(9)
        found.append(torch.randn(50, device="cuda"))
        torch.rand(7)
    assert torch.equal(*found)


def test_a_generator_that_is_given_is_used_and_the_default_one_is_not() -> None:
    mine = torch.Generator("cuda").manual_seed(3)
    before = torch.cuda.get_rng_state()
    first = torch.rand(20, device="cuda", generator=mine)
    assert torch.equal(before, torch.cuda.get_rng_state())
    assert torch.equal(first, torch.rand(20, device="cuda", generator=mine.manual_seed(3)))


def test_fork_rng_covers_the_device() -> None:
    before = torch.cuda.get_rng_state()
    with torch.random.fork_rng(range(torch.cuda.device_count())):
        torch.rand(3, device="cuda")
    assert torch.equal(before, torch.cuda.get_rng_state())


def test_two_devices_that_draw_at_the_same_time_draw_each_its_own_numbers() -> None:
    """The host's default generator took the state of one device while the other drew: two replays differed.

    Both are about to draw at the same time, and again each time that either may be the first to go on.
    """
    rounds, given = range(20), [torch.ones(100, device=f"cuda:{index}") for index in range(2)]
    host = torch.get_rng_state()

    def draw(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.dropout(x, 0.5) + torch.rand_like(x)

    torch.cuda.manual_seed_all(5)
    expected = [[draw(x) for x in given] for _ in rounds]
    torch.cuda.manual_seed_all(5)
    with ThreadPoolExecutor(2) as threads:
        for each in rounds:
            let_draws_meet(2)
            assert all(map(torch.equal, expected[each], threads.map(draw, given)))
    assert torch.equal(host, torch.get_rng_state())

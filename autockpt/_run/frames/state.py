"""What a member's forward finds around it, taken when it begins and put back for its replay.

    forward   ├─ training flags, parameters, buffers, autocast ─ taken ─┤
    replay    ├─ put back ───────── the member's forward ─────── undone ┤

Taking holds references, not bytes, but for the values of buffers that forward changes.

The modules belong to other threads too: one may ask for the `state_dict` while another replays. So a replay sets
entries one by one, over what was there: no dict is emptied for a moment, and none is put in before it has its entries.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ... import _torch_private
from ..._calls.values import tensors
from ..._data.errors import ReplayError
from .claims import Claim
from .slots import Held, check_unchanged

Undo = list[tuple[Callable[..., Any], tuple[Any, ...]]]


def take_back(undo: Undo) -> None:
    """Make the calls in `undo`, from the last to the first; all of them, also where one is interrupted."""
    try:
        while undo:
            function, arguments = undo.pop()
            function(*arguments)
    finally:
        if undo:
            take_back(undo)


class ModuleState:
    """Training flags, parameters and buffers of a member's module tree at the start of its forward.

    Attributes:
        devices: devices other than the CPU that hold parameters or buffers.
        requires_grad: whether any of them wants a gradient.
    """

    __slots__ = (
        "_attributes",
        "_buffers",
        "_changing",
        "_kind",
        "_names",
        "_tensors",
        "_tree",
        "_versions",
        "_wants",
        "_watch_all",
        "devices",
        "requires_grad",
    )

    def __init__(
        self, module: nn.Module, changing: tuple[str, ...] | None, attributes: tuple[tuple[str, str], ...] = ()
    ) -> None:
        """Take the state of `module`.

        Args:
            module: the member.
            changing: names, relative to `module`, of buffers that its forward changes; None if that is not known.
            attributes: plain attributes, each with the module inside `module` that has it, to take as tensors.
        """
        self._attributes = [
            (owned, name, Held(owned[name]))
            for path, name in attributes
            if isinstance((owned := module.get_submodule(path).__dict__).get(name), Tensor)
        ]
        self._kind = type(module)
        self._watch_all = changing is None
        self._changing: list[_Changing] = []
        self._buffers: list[dict[str, Tensor | None]] = []
        # Every module of the tree once, with its training flag, children and dicts of tensors; every tensor, with the
        # dict that owns it and its name in there. This runs for every call of a member, after operators that have swept
        # the caches: it reads no more than it must, and asks all tensors in one go.
        self._tree: list[tuple[nn.Module, bool, Sequence[Any], dict[str, Any], dict[str, Any]]] = []
        self._names: list[tuple[dict[str, Any], str]] = []
        self._tensors: list[Tensor] = []
        norms: set[int] = set()
        found, seen = [module], {module}
        for member in found:
            contents = member.__dict__
            modules = contents["_modules"]
            children = list(modules.values()) if modules else ()
            parameters, buffers = contents["_parameters"], contents["_buffers"]
            self._tree.append((member, member.training, children, parameters, buffers))
            for child in children:
                if child is not None and child not in seen:
                    seen.add(child)
                    found.append(child)
            if parameters:
                self._enter(parameters)
            if buffers:
                self._buffers.append(buffers)
                self._enter(buffers)
                if member.training and _counts_batches(buffers):
                    norms.add(id(buffers))
        self.requires_grad = any(tensor.requires_grad for tensor in self._tensors)
        self.devices = {tensor.device for tensor in self._tensors if not tensor.is_cpu}
        if changing or norms or (changing is None and self._buffers):
            self._take_values(module, changing, norms)
        self._versions = _torch_private.versions(self._tensors)
        self._wants = [tensor.requires_grad for tensor in self._tensors]

    def _enter(self, owned: dict[str, Any]) -> None:
        for name, tensor in owned.items():
            if tensor is not None:
                self._names.append((owned, name))
                self._tensors.append(tensor)

    def _take_values(self, module: nn.Module, changing: tuple[str, ...] | None, norms: set[int]) -> None:
        """Take the values of the buffers that may change; only of the other entries the version must not move.

        Running statistics count among them also where `changing` leaves them out, since forward may go another way
        than the recorded one did, and no version tells.
        """
        if changing is None:
            wanted = {(id(owned), name) for owned in self._buffers for name in owned}
        else:
            owners: dict[str, int] = {}
            wanted = set()
            for path in changing:
                prefix, _, name = path.rpartition(".")
                if prefix not in owners:  # a normalisation has three buffers
                    owners[prefix] = id(module.get_submodule(prefix)._buffers)
                wanted.add((owners[prefix], name))
        names, every = self._names, self._tensors
        self._names, self._tensors = [], []
        for (owned, name), tensor in zip(names, every, strict=True):
            if id(owned) in norms or (id(owned), name) in wanted:
                self._changing.append(_Changing(owned, name, tensor))
            else:
                self._names.append((owned, name))
                self._tensors.append(tensor)

    def owners(self) -> dict[int, Tensor]:
        """Return the parameters and buffers by the key of their storage."""
        every = [*self._tensors, *(buffer.tensor for buffer in self._changing)]
        try:
            return {tensor.untyped_storage()._cdata: tensor for tensor in every}
        except NotImplementedError:  # one of them has no storage, by which to know it
            return {key: tensor for tensor in every if (key := _torch_private.storage_key(tensor))}

    @property
    def compiled(self) -> bool:
        """Whether a module of the tree was compiled by itself."""
        return any(_torch_private.is_compiled(member) for member, *_ in self._tree)

    def settle(self) -> None:
        """Let go of what only the forward itself needed, after it."""
        if self._watch_all:
            for buffer in self._changing:
                buffer.release_if_unchanged()

    def put_back(self, undo: Undo, claim: Claim) -> None:
        """Put the state back, with scratch copies of the buffers that forward changes.

        Args:
            undo: is given the calls that undo it, to be made from the last to the first.
            claim: takes what is replaced, so that replays in other threads wait.

        Raises:
            RuntimeError: a parameter or buffer has changed in place since forward began.
            ReplayError: a module in the tree was exchanged since.
        """
        if self._buffers:  # before anything is read: what is found here is what will be there afterwards
            claim.take(self._buffers)
        # A replay may end before forward puts back what it has changed for a while: all is compared again, not only
        # what differs now.
        swapped: list[tuple[dict[str, Any], str, dict[str, Any]]] = []
        flags: list[tuple[dict[str, Any], bool]] = []
        undo.append((_set_flags, (flags,)))
        for member, training, children, parameters, buffers in self._tree:
            contents = member.__dict__  # it, and its dicts, may have been replaced
            modules = contents["_modules"]
            if (modules or children) and list(modules.values()) != children:
                raise ReplayError(
                    f"modules inside a {self._kind.__name__} were exchanged between its forward and its replay. "
                    "Exchange them after backward."
                )
            if "training" in contents:  # what wraps a module (`torch.compile`) shows that one's
                flags.append((contents, contents["training"]))
                contents["training"] = training
            if contents["_parameters"] is not parameters or contents["_buffers"] is not buffers:
                swapped += [(contents, "_parameters", parameters), (contents, "_buffers", buffers)]
        for buffers in self._buffers:
            undo.append((_restore, (buffers, dict(buffers))))
        if _torch_private.versions(self._tensors) != self._versions:
            for (_, name), tensor, version in zip(self._names, self._tensors, self._versions, strict=True):
                check_unchanged(tensor, version, f"parameter or buffer {name!r}")
        present = [owned.get(name) for owned, name in self._names]
        absent: set[int] = set()
        bound = all(map(operator.is_, present, self._tensors))
        if not bound:
            differing = zip(self._names, present, self._tensors, strict=True)
            claim.take(owned for (owned, _), found, tensor in differing if found is not tensor)
            present = [owned.get(name) for owned, name in self._names]
            absent.update(number for number, (owned, name) in enumerate(self._names) if name not in owned)
        undo.append((_bind, (self._names, present, absent)))
        if not bound:
            _bind(self._names, self._tensors, ())
        wanted = [tensor.requires_grad for tensor in self._tensors]
        undo.append((_want, (self._tensors, wanted)))
        if wanted != self._wants:
            _want(self._tensors, self._wants)
        scratch: dict[int, Tensor] = {}
        for buffer in self._changing:  # two modules may have one buffer, and read there what the other wrote
            if id(buffer.tensor) not in scratch:
                scratch[id(buffer.tensor)] = buffer.scratch()
            buffer.owned[buffer.name] = scratch[id(buffer.tensor)]
        if swapped:  # now that they have their entries; and these are the first to be swapped again
            claim.take(contents for contents, _, _ in swapped)
            for contents, name, owned in swapped:
                undo.append((contents.__setitem__, (name, contents[name])))
                contents[name] = owned
        for owned, name, held in self._attributes:
            _put(owned, name, held.tensor(), undo)


class _Changing:
    """A buffer that forward may change, with its value from before."""

    __slots__ = ("name", "owned", "tensor", "value", "version")

    def __init__(self, owned: dict[str, Any], name: str, tensor: Tensor) -> None:
        self.owned = owned
        self.name = name
        self.tensor = tensor
        self.version = _torch_private.version(tensor)
        self.value: Tensor | None = tensor.detach().clone()

    def release_if_unchanged(self) -> None:
        """Drop the value where forward wrote nothing, or nothing that it reads.

        The version does not tell: kernels write without a new one, and so does whoever writes to ``buffer.data``.
        BatchNorm's kernels do not read what they write for their result, so there the replay may run on a copy of
        the present value.
        """
        if self.owned.get(self.name) is not self.tensor or _torch_private.version(self.tensor) != self.version:
            return
        if _counts_batches(self.owned) or (
            self.value is not None and self.tensor.layout == torch.strided and torch.equal(self.tensor, self.value)
        ):
            self.value = None

    def scratch(self) -> Tensor:
        """Return a copy for one replay to change."""
        if self.value is not None:
            return self.value.clone()
        check_unchanged(self.tensor, self.version, f"buffer {self.name!r}")
        return self.tensor.detach().clone()


class Autocast:
    """The autocast settings of one forward."""

    __slots__ = ("_settings",)

    def __init__(self, devices: set[torch.device], *, enabled: bool = True) -> None:
        """Take the settings for the CPU and `devices`; or, without looking, that autocast is off for them."""
        kinds = {"cpu", *(device.type for device in devices)}
        self._settings = [
            (kind, enabled and torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in kinds
        ]

    def put_back(self, undo: Undo) -> None:
        """Put the settings back; `undo` is given the calls that undo it.

        Not by `torch.autocast`, which on leaving empties the cache of casts that a region around backward may use.
        """
        for kind, enabled, dtype in self._settings:
            undo.append((torch.set_autocast_enabled, (kind, torch.is_autocast_enabled(kind))))
            undo.append((torch.set_autocast_dtype, (kind, torch.get_autocast_dtype(kind))))
            torch.set_autocast_enabled(kind, enabled)
            torch.set_autocast_dtype(kind, dtype)


def holder_of(module: nn.Module, arguments: object) -> nn.Module:
    """Return a module that has what a function is given of the model's own, so that no replay brings it back.

    Those are parameters, and the buffers of `module`, whose code calls the function.
    """
    holder, buffers = nn.Module(), {id(buffer) for buffer in module._buffers.values()}
    given = [leaf for leaf in tensors(arguments) if isinstance(leaf, nn.Parameter) or id(leaf) in buffers]
    holder._parameters.update((str(number), leaf) for number, leaf in enumerate(given))  # type: ignore[misc]
    return holder


def given_buffers(module: nn.Module, arguments: object) -> list[tuple[Tensor, Tensor]]:
    """Return the buffers of `module` and its children among a function's arguments, each with a copy of its values.

    Those alone that kernels may write without a new version, as they do with running statistics.
    """
    given = [leaf for leaf in tensors(arguments) if leaf.is_floating_point() and leaf.is_leaf]
    if all(leaf.requires_grad for leaf in given):
        return []
    buffers = {id(buffer) for buffer in module.buffers()}
    return [(leaf, leaf.detach().clone()) for leaf in given if id(leaf) in buffers]


def _counts_batches(buffers: dict[str, Any]) -> bool:
    """Whether these are the buffers of a normalisation, whose kernels write its statistics without a new version."""
    return "num_batches_tracked" in buffers


def _set_flags(flags: list[tuple[dict[str, Any], bool]]) -> None:
    for contents, training in flags:
        contents["training"] = training


def _bind(names: list[tuple[dict[str, Any], str]], tensors: Sequence[Tensor | None], absent: Collection[int]) -> None:
    """Have these tensors under these names, and nothing under those of which `absent` has the numbers."""
    for number, ((owned, name), tensor) in enumerate(zip(names, tensors, strict=True)):
        if number in absent:
            owned.pop(name, None)
        elif owned.get(name) is not tensor:
            owned[name] = tensor


def _want(tensors: list[Tensor], wants: list[bool]) -> None:
    for tensor, wanted in zip(tensors, wants, strict=True):
        if tensor.requires_grad is not wanted:
            tensor.requires_grad_(wanted)


def _put(owned: dict[str, Any], name: str, tensor: Tensor, undo: Undo) -> None:
    if name in owned:
        undo.append((owned.__setitem__, (name, owned[name])))
    else:
        undo.append((owned.pop, (name,)))
    owned[name] = tensor


def _restore(owned: dict[str, Any], found: dict[str, Any]) -> None:
    """Have the entries that were found, each set by itself: who reads meanwhile finds every one of them."""
    for name, tensor in found.items():
        if owned.get(name, _ABSENT) is not tensor:
            owned[name] = tensor
    if list(owned) == list(found):
        return
    for name in list(owned):  # forward itself has added some, or taken some out
        if name not in found:
            owned.pop(name, None)
    if list(owned) != list(found):
        for name, tensor in found.items():
            owned.pop(name, None)
            owned[name] = tensor


_ABSENT = object()

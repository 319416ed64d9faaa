"""What a member's forward finds in its modules. It is taken when forward begins, and restored for the replay.

    forward   ├─ attributes, parameters, buffers, children and hooks of every module ─ taken ─┤
    replay    nothing has changed, and forward changed no buffer    the modules run themselves
              otherwise                                             doubles of them run, which the replay frees

A double is an object of a module's class that has what forward found, and copies of the buffers that forward changes.
So a replay changes nothing that another thread may read while it saves, evaluates or trains the model.
The state holds references. Only the values of those buffers are copied.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from ..._torch import private
from .around import Undo
from .doubles import doubled, restore
from .held import Detached, check_unchanged
from .spared import Inside, every, spared_in
from .tags import Tags, alias
from .tree import NOTHING, Tree

_WHOLE = frozenset({Tensor, nn.Parameter, nn.Buffer})
"""Classes of tensors that have a storage of their own, on this rank."""

_clone, _storage_of, _key_of = Tensor.clone, Tensor.untyped_storage, operator.attrgetter("_cdata")
_is_on_cpu, _wants = operator.attrgetter("is_cpu"), operator.attrgetter("requires_grad")


class ModuleState:
    """The state of a member's modules when its forward begins.

    Attributes:
        member: the module whose forward it is; None for a torch function.
        owners: parameters and buffers, by the keys of their storages.
        devices: devices other than the CPU that hold some of them.
    """

    def __init__(
        self,
        module: nn.Module | None,
        changing: Inside | None,
        given: Iterable[Tensor] = (),
        unread: Inside = (),
        reached: Sequence[nn.Module] = (),
    ) -> None:
        """Take the state of `module`.

        Args:
            module: the member.
            changing: buffers that its forward changes; None if that is not known.
            given: further tensors that belong to the model. No replay makes them again.
            unread: attributes whose tensors the replay does not need, if forward overwrites them.
            reached: further modules that forward may call, where the member is a function.
        """
        self.member = module
        self._tensors = list(given)
        self._changing: list[tuple[Tensor, Tensor]] = []  # buffers, with the values that they had
        self._sure: set[int] = set()  # ids of the buffers that are known to change
        self._everywhere = private.global_hooks()
        self._spared = spared_in(module, unread) if unread and module is not None else NOTHING
        self._tree = tree = Tree(reached if module is None else (module, *reached))
        for member, attributes in self._spared.items():
            tree.contents[tree.modules.index(member)].update(attributes)
        if tree.has_tensors():
            self._take_attributes()
        # What parameters and buffers have as Python attributes.
        self._tags = Tags([*tree.parameters, *tree.buffers]) if tree.modules else None
        self._tensors += tree.parameters
        tensors = [*self._tensors, *tree.buffers] if tree.buffers else self._tensors
        self._take_storages(tensors)
        self._aliased = len(self.owners) < len(tensors)
        on_cpu = all(map(_is_on_cpu, tensors))
        self.devices = set() if on_cpu else {tensor.device for tensor in tensors if not tensor.is_cpu}
        if tree.buffers and (changing is None or changing or tree.norms):
            self._take_values(tree.modules[0], changing)
        else:
            self._tensors += tree.buffers
        self._versions = private.versions(self._tensors)
        self._wants = [*map(_wants, self._tensors)]

    def _take_storages(self, tensors: Sequence[Tensor]) -> None:
        """Find whose each storage is."""
        try:
            # Held until forward is over. If a tensor gets a new storage meanwhile, the old address must not be reused.
            local = tensors if _WHOLE.issuperset(map(type, tensors)) else map(private.local, tensors)
            self._storages = [*map(_storage_of, local)]
            self.owners: dict[int, Tensor] = dict(zip(map(_key_of, self._storages), tensors, strict=True))
        except NotImplementedError:  # a tensor without a storage has no key
            self._storages = []
            self.owners = {key: tensor for tensor in tensors if (key := private.storage_key(tensor))}

    @property
    def copied(self) -> set[int]:
        """Ids of the buffers of which a replay gets copies."""
        return {id(tensor) for tensor, _ in self._changing}

    def named(self, prefix: str) -> dict[str, nn.Module]:
        """Return the modules inside the member by name, its own name being `prefix`; none for a torch function."""
        return {} if self.member is None else dict(self.member.named_modules(prefix=prefix))

    def code(self) -> object:
        """Return the function whose code may reach more than the modules do; None where the member is a module."""
        return None

    def _take_attributes(self) -> None:
        """Take tensors that are plain attributes. They are held without their graphs, which may lead back here."""
        for contents in self._tree.contents:
            for name, value in contents.items() if Tensor in map(type, contents.values()) else ():
                if isinstance(value, Tensor):
                    if value.grad_fn is None:
                        self._tensors.append(value)
                    else:
                        contents[name] = Detached(value, f"attribute {name!r}")

    def _take_values(self, module: nn.Module, changing: Inside | None) -> None:
        """Copy the buffers that may change, and those that share storage with one of them.

        Forward may take another path than the recorded one. So running statistics are copied even if `changing` leaves
        them out, since kernels write them without a new version. If `changing` names any buffer, or is None, all others
        are copied too, until `settle`: code that updates codebooks writes them through `.data`.
        """
        every = buffers = self._tree.buffers
        sure = {*map(id, chain.from_iterable(each.values() for each in self._tree.norms))}
        for path, names in changing or ():
            owner: Any = module
            for part in path:
                owner = owner._modules[part]
            sure.update(map(id, map(owner._buffers.get, names)))
        if self._aliased:
            buffers = list({id(tensor): tensor for tensor in buffers}.values())  # two modules may share one
            keys = {private.storage_key(tensor) for tensor in buffers if id(tensor) in sure} - {0}
            sure.update(id(tensor) for tensor in buffers if private.storage_key(tensor) in keys)
        if changing == ():
            buffers = [tensor for tensor in buffers if id(tensor) in sure]
        self._sure, self._changing = sure, list(zip(buffers, self._copies(buffers), strict=True))
        copied = self.copied
        if len(buffers) < len(every):
            self._tensors += [tensor for tensor in every if id(tensor) not in copied]
        if not copied.isdisjoint(map(id, self._tensors)):  # an attribute, or what a function was given
            self._tensors = [tensor for tensor in self._tensors if id(tensor) not in copied]

    def forward_ends(self) -> None:
        """Note that forward is over: it has returned or raised."""
        for spared in every(self._spared) if self._spared else ():
            spared.unwatch()

    def settle(self) -> None:
        """Drop the copies of buffers that forward has not changed, except of those that are known to change."""
        self._storages = []
        for member, attributes in self._spared.items():
            for name, spared in attributes.items():
                spared.settle(vars(member).get(name))
        if not self._changing or self._sure.issuperset([id(tensor) for tensor, _ in self._changing]):
            return
        storages = [private.storage_key(tensor) or id(tensor) for tensor, _ in self._changing]
        changed = {
            storage
            for storage, (tensor, value) in zip(storages, self._changing, strict=True)
            # Versions do not tell: a kernel may write without a new one, and so does code that writes to `buffer.data`.
            if id(tensor) in self._sure or tensor.layout != torch.strided or not torch.equal(tensor, value)
        }
        pairs = list(zip(storages, self._changing, strict=True))
        same = [tensor for storage, (tensor, _) in pairs if storage not in changed]
        self._changing = [pair for storage, pair in pairs if storage in changed]
        self._tensors += same
        self._wants += [tensor.requires_grad for tensor in same]
        self._versions += private.versions(same)

    def replayed(self, forward: Callable[..., Any], undo: Undo) -> Callable[..., Any]:
        """Return what a replay calls in place of `forward`: `forward` itself, or that of a double.

        Args:
            forward: the member's own.
            undo: gets one more call, which undoes what the replay does to the modules.

        Raises:
            RuntimeError: a parameter or buffer has changed in place since forward began.
            ReplayError: no double can be made now.
        """
        self._check_versions()
        now = [*map(_wants, self._tensors)]
        gone = self._gone_hooks()
        tags = self._tags
        if tags is not None:
            undo.append((tags.put, (tags.now(),)))
        if self._is_there(now, gone):
            undo.append((self.put_back, ()))
            return forward
        values = self._copies([value for _, value in self._changing])
        instead = {id(tensor): value for (tensor, _), value in zip(self._changing, values, strict=True)}
        for tensor, wants, has in zip(self._tensors, self._wants, now, strict=True) if now != self._wants else ():
            if has is not wants:
                instead[id(tensor)] = nn.Parameter(tensor.detach(), wants)
        tagged = tags.with_some() if tags is not None else ()
        for tensor, _ in tagged:
            if id(tensor) not in instead:
                instead[id(tensor)] = alias(tensor, tensor.requires_grad)
        tags_of = {id(tensor): own for tensor, own in tagged}
        return doubled(self._tree, forward, instead, tags_of, gone, undo)

    def _is_there(self, now: list[bool], gone: dict[str, dict[int, Any]]) -> bool:
        """Whether all is as it was found, and a replay changes no buffer: the modules themselves can run.

        Args:
            now: whether each tensor requires a gradient now.
            gone: hooks that are not there any more.
        """
        return (
            not self._changing
            and not self._spared
            and not gone
            and now == self._wants
            and self._tree.is_there()
            and (self._tags is None or self._tags.are_there())
        )

    def _check_versions(self) -> None:
        if private.versions(self._tensors) != self._versions:
            for tensor, version in zip(self._tensors, self._versions, strict=True):
                check_unchanged(tensor, version, f"parameter or buffer {self._name(tensor)!r}")

    def put_back(self) -> None:
        """Restore modules that a replay has run to the state that was found.

        Forward may change them for a while, and a replay may end before forward changes them back.
        """
        if not self._tree.is_there():
            restore(self._tree.every())
        if [*map(_wants, self._tensors)] != self._wants:
            for tensor, wants in zip(self._tensors, self._wants, strict=True):
                tensor.requires_grad_(wants)

    def _gone_hooks(self) -> dict[str, dict[int, Any]]:
        """Return the global hooks on module forwards that were there when forward began, and are not there now."""
        if self._everywhere is None:
            return {}
        now = private.global_hooks() or {}
        gone = {
            name: {number: hook for number, hook in hooks.items() if number not in now.get(name, {})}
            for name, hooks in self._everywhere.items()
        }
        return {name: hooks for name, hooks in gone.items() if hooks}

    def _name(self, tensor: Tensor) -> str:
        every = (item for each in self._tree.every() for item in (each.parameters | each.buffers).items())
        return next((name for name, each in every if each is tensor), "")

    def _copies(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Copy tensors; copies share storage if the originals do."""
        if not self._aliased:
            # The copy of a tensor without a graph has none either, so `detach` would be one operator too many.
            wanting = any(map(_wants, tensors))
            return [*map(_clone, [tensor.detach() for tensor in tensors] if wanting else tensors)]
        keys = [private.storage_key(tensor) for tensor in tensors]
        storages: dict[int, torch.UntypedStorage] = {}
        found = []
        for tensor, key in zip(tensors, keys, strict=True):
            if keys.count(key) == 1 or not key:
                found.append(tensor.detach().clone())
                continue
            if key not in storages:
                storages[key] = tensor.untyped_storage().clone()
            view = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
            found.append(view.set_(storages[key], tensor.storage_offset(), tensor.shape, tensor.stride()))
        return found

"""The plan that is on a model, for whatever chooses plans.

    forward(begins) ─▶ the model's own forward, under the plan
    take_report()   ─▶ what replays and calls have shown since
    replace(plan)   ─▶ another table, from the next forward on

`install` has put it there.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import nn

from ..._calls.found.reference import Reference
from ..._data.plan import Plan
from ..compare.checks import ReplayChecks
from ..frames.routing import patched_forward
from ..frames.table import Handle, Table
from .install import uninstall
from .patches import patch_new, rename
from .targets import table_of


class Begins(Protocol):
    """A forward of a root that begins.

    Attributes:
        root: the module.
        name: its name.
        own: its own forward, whatever was put over it.
        arguments: by position and by keyword.
    """

    @property
    def root(self) -> nn.Module: ...
    @property
    def name(self) -> str: ...
    @property
    def own(self) -> Callable[..., Any]: ...
    @property
    def arguments(self) -> tuple[tuple[Any, ...], Mapping[str, Any]]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanReport:
    """What forwards and replays under a plan have shown since the last report.

    Attributes:
        faults: calls that cannot be replayed, by key with the reason.
        unplanned: whether calls were made that no recorded step made.
    """

    faults: Mapping[str, str] = field(default_factory=dict)
    unplanned: bool = False


class Installation:
    """The plan that is on a model, or on several; it can be replaced by another.

    Args:
        handle: what the patched forwards have in common. The model itself is not kept alive.
    """

    __slots__ = ("_handle",)

    def __init__(self, handle: Handle) -> None:
        self._handle = handle

    @property
    def plan(self) -> Plan | None:
        """The plan; None before there is one."""
        return self._handle.table.plan

    @property
    def roots(self) -> tuple[str, ...]:
        """Names of the modules whose forwards the user's loop calls."""
        return self._handle.roots

    def forward(self, begins: Begins) -> Any:
        """Run a forward under the plan."""
        args, kwargs = begins.arguments
        return patched_forward(begins.own, Reference(begins.root), begins.name, self._handle, *args, **kwargs)

    def take_report(self) -> PlanReport:
        """Return what was seen since the last time."""
        table = self._handle.table
        faults = table.replayers.findings.take_faults() if isinstance(table.replayers, ReplayChecks) else {}
        return PlanReport(faults=faults, unplanned=table.unplanned.take_met())

    def replace(
        self,
        model: nn.Module,
        plan: Plan,
        checks: ReplayChecks | None = None,
        calls: Mapping[str, int] | None = None,
        early: Collection[int] = (),
    ) -> None:
        """Put another plan on the model, whose own forward may be running; earlier steps keep their plan.

        Args:
            model: the model.
            plan: the other plan.
            checks: compares its replays; None compares nothing.
            calls: as for `govern`.
            early: numbers of the segments whose replays may run before their backward begins.

        Raises:
            NotApplicable: see `install` and `uninstall`; nothing is changed then.
        """
        table, modules = table_of(model, plan, checks, calls, early)
        rename(model, self._handle)
        patch_new(modules, self._handle)
        self._handle.table = table

    def empty(self) -> None:
        """Recompute nothing from now on."""
        self._handle.table = Table()

    def remove(self, model: nn.Module) -> None:
        """Take the plan off the model; errors as for `uninstall`."""
        uninstall(model)

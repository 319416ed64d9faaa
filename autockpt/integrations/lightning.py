"""A budget for the Trainer of Lightning."""

from __future__ import annotations

from typing import Any

from lightning import Callback, LightningModule, Trainer
from torch import nn

from autockpt import NotApplicable

from .held import BudgetOfTraining


class LightningBudget(Callback):  # type: ignore[misc]
    """Hold what a LightningModule trains to a memory budget, from its first step to its last.

    The budget is applied as training begins, when everything is on its device and the optimizers are made. It is taken
    off at the end. It goes to the modules that ``training_step`` calls: to all children of the LightningModule that
    have something to train, together, or to those that are named. Losses and gradients are bit for bit those of the
    training without it.

    After each step these figures are logged, once there is a plan: ``autockpt/budget_bytes``,
    ``autockpt/peak_bytes`` and ``autockpt/overhead``, as predicted for the plan, and
    ``autockpt/measured_peak_bytes`` on a device.

    Args:
        budget: highest peak of the whole step, as for `apply`: bytes, ``"8GB"``, ``"80%"``.
        modules: qualified names of the modules inside the LightningModule to plan; None for all its children that
            train.
        options: other arguments of `apply`, by name, such as ``max_overhead``, ``plan`` or ``keep``.

    Raises:
        BudgetError: the budget does not parse, or not exactly one of budget, ``max_overhead`` and ``plan`` is given.
        TypeError: `apply` has no such argument.

    Example:
        >>> from autockpt.integrations.lightning import LightningBudget  # doctest: +SKIP
        >>> trainer = lightning.Trainer(callbacks=[LightningBudget("20MB")])  # doctest: +SKIP
    """

    def __init__(self, budget: int | str | None = None, *, modules: list[str] | None = None, **options: Any) -> None:
        self._held = BudgetOfTraining(budget, options)
        self._modules = modules

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Apply the budget.

        Raises:
            NotApplicable: there is nothing to plan, there is no module of a given name, or one has a plan already.
            AutockptError: whatever `apply` raises.
        """
        chosen = trained(pl_module, self._modules)
        self._held.begin(next(iter(chosen.values())) if len(chosen) == 1 else chosen, list(trainer.optimizers))

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *rest: Any) -> None:
        """Log the figures."""
        figures = self._held.figures()
        if figures:
            pl_module.log_dict(figures, on_step=True, on_epoch=False, batch_size=1)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Take the plan off."""
        self._held.end()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Take the plan off, for a training that ended in an error."""
        self._held.end()


def trained(module: nn.Module, names: list[str] | None) -> dict[str, nn.Module]:
    """Return the modules to plan, by name: those of `names`, or else the children with something to train.

    Raises:
        NotApplicable: there is no module of such a name, or no child has something to train.
    """
    own = type(module).__name__
    if names is not None:
        every = dict(module.named_modules())
        missing = [name for name in names if name not in every or name == ""]
        if missing or not names:
            there = ", ".join(name for name, _ in module.named_children())
            raise NotApplicable(
                f"{own} has no module {', '.join(map(repr, missing or ['']))}; its children are {there}"
            )
        return {name.replace(".", "_"): every[name] for name in names}  # names of models have no dots
    found = {
        name: child
        for name, child in module.named_children()
        if any(parameter.requires_grad for parameter in child.parameters())
    }
    if not found:
        raise NotApplicable(
            f"no module inside {own} has something to train. Put what training_step calls into a module of its own, "
            "such as self.model: training_step itself is no forward."
        )
    return found

"""A budget for the Trainer of transformers, and for the trainers of TRL, which are such trainers."""

from __future__ import annotations

from typing import Any

from transformers import TrainerCallback

from autockpt import NotApplicable

from .held import BudgetOfTraining


class TrainerBudget(TrainerCallback):  # type: ignore[misc]
    """Hold the model of a trainer to a memory budget, from its first step to its last.

    The budget is applied as training begins: after the trainer has wrapped the model and made its optimizer. It is
    taken off at the end. Losses and gradients are bit for bit those of the training without it.

    What the trainer logs has these figures beside the loss, once there is a plan: ``autockpt/budget_bytes``,
    ``autockpt/peak_bytes`` and ``autockpt/overhead``, as predicted for the plan, and ``autockpt/measured_peak_bytes``
    on a device. They are in the trainer's history. Loggers such as TensorBoard and Weights & Biases see them if this
    callback comes before them, which `add_to` sees to.

    Args:
        budget: highest peak of the whole step, as for `apply`: bytes, ``"8GB"``, ``"80%"``.
        options: other arguments of `apply`, by name, such as ``max_overhead``, ``plan`` or ``keep``.

    Raises:
        BudgetError: the budget does not parse, or not exactly one of budget, ``max_overhead`` and ``plan`` is given.
        TypeError: `apply` has no such argument.

    Example:
        >>> from autockpt.integrations.transformers import TrainerBudget
        >>> callback = TrainerBudget("20MB")
        >>> # trainer = Trainer(model=model, args=arguments, train_dataset=rows)
        >>> # callback.add_to(trainer).train()
    """

    def __init__(self, budget: int | str | None = None, **options: Any) -> None:
        self._held = BudgetOfTraining(budget, options)

    def add_to(self, trainer: Any) -> Any:
        """Add this callback to a trainer, before those that write logs.

        Args:
            trainer: a ``transformers.Trainer``, or one of TRL's.

        Returns:
            The trainer.

        Raises:
            NotApplicable: it is no trainer.
        """
        if not hasattr(trainer, "callback_handler"):
            raise NotApplicable(
                f"add_to takes a trainer, such as transformers.Trainer, and this is a {type(trainer).__name__}; "
                "a model takes a budget by autockpt.apply(model, budget)"
            )
        trainer.callback_handler.callbacks.insert(0, self)
        return trainer

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Apply the budget.

        Raises:
            NotApplicable: the model has a budget or a plan already.
            AutockptError: whatever `apply` raises.
        """
        optimizer = kwargs.get("optimizer")
        own = getattr(optimizer, "optimizer", optimizer)  # accelerate wraps it
        self._held.begin(kwargs["model"], [] if own is None else [own])

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any) -> None:
        """Add the figures to what is logged while training."""
        figures = self._held.figures()
        if logs is None or not figures:
            return
        logs.update(figures)
        if state.log_history:  # the trainer has written it down before it asks its callbacks
            state.log_history[-1].update(figures)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Take the plan off."""
        self._held.end()

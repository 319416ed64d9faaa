"""Warnings that a model's user gets while it trains, each given once."""

from __future__ import annotations

import logging

_log = logging.getLogger("autockpt")

HOOKS = (
    "saved_tensors_hooks (save_on_cpu is one) around the forward put something else in the place of saved tensors, "
    "which a plan would undo: the model trains without a plan, and the budget does not hold"
)

UNHOOKED = (
    "forward uses torch.func.grad, vjp or jacrev, or switches saved-tensor hooks off in another way, and recording "
    "needs them: no plan is made for such steps, and the budget may not hold. Write a plan by hand that keeps the "
    "calls which do (Plan.of)."
)

OTHER_CALLS = (
    "a step made other calls than those of its kind before: from now on the largest seen is planned for. What "
    "forward saves in calls that no recorded step made waits elsewhere, which keeps most such steps to the budget. The "
    "limits in the documentation say how far above it some were."
)

CHANGED = (
    "the model changed since its last recorded step: {}. The plan is for the model as it was, so this step may "
    "have been above the budget. The next one is recorded, and planned for."
)

UNCOVERED = (
    "a step makes more forwards than any step that could be recorded, or others, and no plan covers them. What "
    "they save waits elsewhere; what derivatives of derivatives save does not, and the budget may not hold."
)

LOWEST = "no plan holds this step to the budget, and it runs under the lowest one, {}: {}"

LATER = "the recording of a step is dropped, and a later one will be recorded"

FAILED = "no step could be recorded, so the model trains without a plan from now on"

STILL = (
    "{} steps ran and none could be recorded, so there is still no plan, and they are slow, since what forward saves "
    "waits elsewhere: {}. Let three steps pass without it, or plan before: apply(model, budget, inputs=batch, "
    "loss=loss)."
)

UNPLANNED = (
    "several steps were recorded, each larger than those before by more than a quarter, or of another kind (arguments, "
    "flags, modules that were replaced), and no plan is made yet. They keep to the budget and are slow, since what "
    "forward saves waits elsewhere. Where it is sizes that vary, of one model, apply(model, budget, "
    "plan_for={'input_ids': (8, 2048)}) tells the largest ahead."
)

ENDLESS = (
    "each step so far was of another kind, by its arguments (a text or a flag that only names the step), by which "
    "parameters require gradients, or by modules that were replaced or switched to another mode: no more of them are "
    "recorded. Steps of the kinds that were recorded last are planned. All others keep to the budget and are slow, "
    "since what forward saves waits elsewhere. Leave out of forward's arguments what it does not need, or plan before: "
    "apply(model, budget, inputs=batch, loss=loss)."
)

ALONE = (
    "no backward has followed the forwards of a model that is held to a budget, though they ran with gradients on: "
    "none is recorded from now on, until a backward reaches one, and they run without a plan. If forward returns "
    "tensors, and the loop only looks at them, put torch.no_grad() around it. If forward is a generator (it yields), "
    "have it return all in a list. If it runs the backward itself, apply to the modules that it calls: "
    "autockpt.apply([one, other], budget)."
)

COPIED = (
    "a deep copy of {} was made: once it trains, it is held to the same budget by itself, and warnings that were given "
    "are not repeated for it. autockpt.remove(copy) makes it a plain model."
)

REPLACED = (
    "the forward of a model that is held to a budget was replaced after apply, by one that does not call it (as TRL's "
    "trainers do), and a step ran without a plan. From now on the one that replaced it is planned. Apply after "
    "whatever replaces it, and the first step keeps to the budget too."
)

UNSEEN = (
    "a model that is held to a budget trains, by a backward or an optimizer's step, and no training forward of its own "
    "was seen: the step ran without a plan. Apply to the module whose forward is called (with Lightning: the one that "
    "training_step calls), after whatever replaces its forward. Where torch.compile is around the whole model, apply "
    "to what it returns, apply(torch.compile(model), budget), on a CPU; or give a batch, apply(model, budget, "
    "inputs=batch, loss=loss), before compiling; or compile its blocks alone."
)

COMPILED = (
    "the model was compiled as a whole after apply, and a step of it ran without a plan. From the next step on it is "
    "held to the budget inside what was compiled. Apply to what torch.compile returns, and the first one is too."
)

BEHIND = (
    "a model that has a plan trains, and its own forward was not seen. Where the whole model was compiled after apply, "
    "the plan is in what was compiled: its segments are recomputed, and steps are neither compared nor planned anew. "
    "Where parts of it are called instead, nothing in them is recomputed: apply to the module whose forward is called."
)

AHEAD = (
    "each forward comes before the backward of the forward before it, and no optimizer steps in between, so that a "
    "step ends nowhere: some 16 forwards are recorded as one step. No plan is ready before about 70 forwards. Until "
    "then what forward saves waits elsewhere, so that the budget holds. Run a backward before the next forward."
)

BACKWARDS = (
    "a step had more backward passes than its plan counts on, or one that kept its graph (retain_graph, or several "
    "losses with a backward each): what a segment recomputes for one is recomputed for the next, and its inputs are "
    "held until then. That step may have been above the budget; the next one is recorded, and planned for."
)

TRANSFORMED = (
    "a model that is held to a budget trains inside a transform of torch.func (jvp, grad, vjp, vmap), in which nothing "
    "is recomputed: such a step runs without a plan, and takes what the plain one takes."
)

CHECKPOINTED = (
    "a model that is held to a budget trains inside torch.utils.checkpoint, which recomputes all of it: such a step "
    "runs without a plan, and may take more than the budget. Call the model without it."
)

UNDER_RECOMPUTE = (
    "a model that is held to a budget trains under autockpt.recompute, which recomputes all of it: such a step runs "
    "without a plan, and may take more than the budget. Call the model without it."
)

APART = (
    "{0} and {1} train in one loop, each held to a budget of its own that does not know of the other: together they "
    "may hold more than either. "
)

APART_EAGER = APART + "One budget for both: autockpt.apply([one, other], budget)."

APART_COMPILED = APART + (
    "What is compiled as a whole shares no budget with others: give each a budget so that they add up to what is there."
)

UNCOUNTED = (
    "{0} of tensors stand beside the model and its step (another model, an average of the weights, data), and count in "
    "no plan: take them off the budget, or plan what trains in one loop together, autockpt.apply([one, other], budget)."
)

MISSING = (
    "of the models that are planned together, no step has called {0} so far. Their weights count. What their other "
    "methods compute, or their parts (vae.encode, vae.decode), is counted and never recomputed: where gradients pass "
    "through that, give the modules whose forward is called, such as [vae.encoder, vae.decoder]."
)


def unplanned(inside: str | None, planned: bool) -> str:
    """Return the warning for a step in which the model's own forward was not seen.

    Args:
        inside: what to tell of a forward inside something in which none is seen as training; None if none ran so.
        planned: whether a plan is on the model.
    """
    return inside or (BEHIND if planned else UNSEEN)


MOST_UNCOUNTED = 0.05
"""Share of the budget that may be allocated beside a model without a warning. Predictions are closer than that, and a
loop's own batches and metrics are mostly less."""


class WarnOnce:
    """Warns the user, and remembers which warnings were given."""

    def __init__(self) -> None:
        self._said: set[str] = set()

    def once(self, *texts: str, where: bool = True, level: int = logging.WARNING) -> None:
        """Give each warning that was not given before, or say it at another level; none unless `where`."""
        for text in texts:
            if where and text not in self._said:
                self._said.add(text)
                _log.log(level, "%s", text)

"""The model that several ranks train, where it is compiled as a whole."""

from __future__ import annotations

from torch import nn

from ..._calls.roots import Models, as_one
from ..._ranks.buckets import data_parallel
from ..._run.patch.install import installed_on
from ..._torch import private


def held_as_one(models: Models) -> nn.Module:
    """Return what is held to one budget, as one module.

    Where DistributedDataParallel is around a model that is compiled as a whole by a backend whose memory is predicted,
    that is the model: the wrapper runs outside of what was compiled. Where a model was compiled after `apply`, and is
    held inside what was compiled, that is what ``torch.compile`` returned.

    Raises:
        NotApplicable: see `as_one`.
    """
    whole = as_one(models)
    wrapper = data_parallel(whole)
    if wrapper is whole and private.is_compiled(wrapper.module):
        from ..._compiled.hold import takes

        inside: nn.Module = wrapper.module
        return inside if takes(inside) else whole
    around = None if private.is_compiled(whole) or installed_on(whole) else private.compiled_around(whole)
    if around is None:
        return whole
    from ..._compiled.hold import held_by  # who does not compile loads none of it

    return whole if held_by(around) is None else around

"""Reasons for which a call is kept, as profiles and `explain` name them."""

from __future__ import annotations

LATE_WRITE = "draws the noise of an RReLU after it was saved, and a replay stops at the last save"
"""The one operator of torch that writes what is saved only after autograd has it."""

UNTRACED = "returns an empty or sparse tensor, of which it is not known what reads it"
"""Another step's may have elements: an expert that got no token in the recorded step gets some later."""

WRITTEN_UNSEEN = "is given a tensor that was written through `.data`, which a replay of a run would not do"
"""No version tells, so that a frame takes such a tensor for the result that another call of the run returned."""

CAPTURED = "reads a tensor that is no argument, parameter or buffer (closure or attribute)"

CHANGES_PARAMETER = "changes a parameter in place, which a replay would do again"

CHANGES_GIVEN_BUFFER = "changes a buffer that it is given, which a replay would do again"

GIVEN_BUFFER_MOVES = "is given a buffer that is changed in place later"

MAKES_NESTED = "makes a nested tensor, and that of a replay would have lengths of its own"
"""Torch tells lengths apart by the tensor that they were given in."""

DRAWS_ELSEWHERE = "draws random numbers on a device ({}) on which it is given no tensor"

IS_THE_ROOT = "is the model itself, called inside its own forward: nothing outside it would hold a boundary"

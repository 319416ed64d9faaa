"""Record one of the benchmarks' models with whatever autockpt this interpreter imports.

    python record.py CHECKOUT MODEL FILE

The models come from the checkout, the library from the environment: the folder that holds both comes last on the path.
"""

from __future__ import annotations

import sys

import autockpt  # before the checkout is on the path


def main() -> None:
    checkout, name, path = sys.argv[1:]
    sys.path.append(checkout)
    import torch

    from benchmarks.models import build
    from tests.zoo import loss_of

    torch.set_num_threads(1)
    case = build(name)
    case.step()
    autockpt.profile(case.model, case.kwargs, loss=loss_of).save(path)


if __name__ == "__main__":
    main()

"""Record a model with whatever autockpt this interpreter imports.

    python worker.py CHECKOUT MODEL FILE

The models come from the checkout, the library from the environment: the folder that holds both comes last on the path.
"""

from __future__ import annotations

import sys
import time
import warnings

import autockpt  # before the checkout is on the path


def main() -> None:
    checkout, name, path = sys.argv[1:]
    sys.path.append(checkout)
    import torch

    from benchmarks import models, others
    from tests.zoo import loss_of

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    case = others.build(name) if name in others.OTHERS else models.build(name)
    case.step()
    began = time.perf_counter()
    autockpt.profile(case.model, case.kwargs, loss=loss_of).save(path)
    print(time.perf_counter() - began)


if __name__ == "__main__":
    main()

"""Files that somebody's editor, script or disk has damaged: a JSON document with one to three things wrong in it."""

from __future__ import annotations

import copy
import json
import random
from typing import Any

NONSENSE: tuple[Any, ...] = (
    None,
    True,
    -1,
    -(2**40),
    -0.5,
    0,
    1,
    10**9,
    2**63 - 1,
    2**63,
    10**30,
    1e308,
    -1e308,
    float("nan"),
    float("inf"),
    "",
    "0",
    "-1",
    "x" * 2000,
    "no.such.call#0",
    "h.0#-1",
    "#",
    "a\nb",
    "\u0000",
    [],
    [[]],
    [-1],
    {},
    {"schema": 1},
    [{"calls": []}],
)
"""What may stand in the place of anything."""


def damaged(text: str, seed: int) -> bytes:
    """Return a document with something wrong in it, the same for the same seed."""
    chance = random.Random(seed)
    if seed % 10 == 0:
        return _torn(text.encode(), chance)
    document = json.loads(text)
    for _ in range(chance.choice((1, 1, 1, 2, 3))):
        document = _wrong(document, chance)
    return json.dumps(document).encode()


def _torn(data: bytes, chance: random.Random) -> bytes:
    """Cut off the end, or change some bytes."""
    if chance.random() < 0.5:
        return data[: chance.randrange(len(data))]
    torn = bytearray(data)
    for _ in range(chance.choice((1, 3, 20))):
        torn[chance.randrange(len(torn))] = chance.randrange(256)
    return bytes(torn)


def _wrong(document: Any, chance: random.Random) -> Any:
    """Return a copy with one thing wrong, anywhere in it: near the root as often as deep down."""
    document = copy.deepcopy(document)
    inside, key = document, chance.choice(list(document)) if document else None
    while key is not None and isinstance(inside[key], (dict, list)) and inside[key] and chance.random() < 0.75:
        inside = inside[key]
        key = chance.choice(list(inside)) if isinstance(inside, dict) else chance.randrange(len(inside))
    if key is None:
        return document
    how = chance.randrange(8)
    if how == 0:
        del inside[key]
    elif how == 1 and isinstance(inside, list):
        inside.insert(key, copy.deepcopy(chance.choice(inside)))
    elif how == 2 and isinstance(inside, list):
        other = chance.randrange(len(inside))
        inside[key], inside[other] = inside[other], inside[key]
    elif how == 3 and isinstance(inside, dict):
        inside[chance.choice(("surprise", "bytes", key + "s"))] = inside[key]
    elif how == 4 and isinstance(inside[key], (int, float)):
        inside[key] = chance.choice((-inside[key], inside[key] * 10**6, inside[key] + 1, inside[key] - 1))
    elif how == 5:
        nested: Any = inside[key]
        for _ in range(chance.choice((1, 3, 60))):
            nested = [nested]
        inside[key] = nested
    else:
        inside[key] = copy.deepcopy(chance.choice(NONSENSE))
    return document

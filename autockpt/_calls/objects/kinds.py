"""Kinds of values that objects hold: how `contents.py` enters a value depends on its kind."""

from __future__ import annotations

import argparse
import array
import io
import queue
import random
import threading
import types
import weakref
from collections import ChainMap, UserDict, UserList, deque
from collections.abc import Iterator
from contextvars import ContextVar
from functools import cached_property

import numpy
import torch

ATOMS = frozenset({types.NoneType, bool, int, float, complex, str, bytes})
RANDOM = (torch.Generator, random.Random, numpy.random.RandomState, numpy.random.Generator)
CONTAINERS = (dict, list, set, deque)
OBJECTS = (
    types.SimpleNamespace,
    argparse.Namespace,
    threading.local,
    UserDict,
    UserList,
    ChainMap,
    weakref.WeakKeyDictionary,
    weakref.WeakValueDictionary,
    weakref.WeakSet,
    queue.Queue,
    threading.Semaphore,
    threading.Event,
    threading.Barrier,
    torch.quasirandom.SobolEngine,
    torch.optim.Optimizer,
    torch.optim.lr_scheduler.LRScheduler,
    torch.amp.GradScaler,
    cached_property,
)
NUMBERS = (int, float, complex, str, tuple)
STREAMS = (io.StringIO, io.BytesIO)
OTHERS = (*STREAMS, bytearray, array.array, Iterator, ContextVar)
HELD = (torch.Tensor, torch.nn.Module, numpy.ndarray, weakref.ref, BaseException)
OWN = frozenset(torch.nn.Module().__dict__)

REGISTRIES = tuple(key for key in vars(torch.nn.Module()) if key.endswith("_hooks") and "_forward_" not in key)
"""Hooks of modules that run in backward, or as states are saved and loaded; a replay restores those of forward."""

"""What the reference learners learn: inputs, targets, first parameters, rates. Data, and nothing that computes.

A linear model of `LENGTH` coordinates, fitted to `INPUTS` inputs, `BATCH` of them a step. All numbers are small
fractions of a power of two, so that every machine has the very same ones; the lengths go into no owner count evenly.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

Vector = np.ndarray[Any, np.dtype[np.float32]]

LENGTH: Final = 23
INPUTS: Final = 41
BATCH: Final = 12

LEARNERS: Final = ("sgd", "momentum", "adam", "optimizer-only")
"""Replicated parameters; parameters and momentum cut by coordinates; parameters and both moments cut; replicated
parameters with both moments cut."""

RATE: Final = np.float32(0.0625)
MOMENTUM: Final = np.float32(0.9)
BETA1: Final = np.float32(0.9)
BETA2: Final = np.float32(0.99)
EPSILON: Final = np.float32(2.0**-20)
MEAN: Final = np.float32(1 / 12)
"""What the sum over a batch is multiplied by."""

FAN_OUT: Final = 2
"""Of the trees along which sums are added and checkpoints published, where they are no stars."""


def inputs() -> tuple[Vector, Vector]:
    """Give the inputs, (INPUTS, LENGTH), and their targets, (INPUTS,)."""
    i, j = np.arange(INPUTS)[:, None], np.arange(LENGTH)[None, :]
    x = ((7919 * (i + 1) + 104729 * (j + 1) * (i + 3)) % 2003 - 1001) / 1024
    y = ((15485863 * (np.arange(INPUTS) + 1)) % 509 - 254) / 256
    return x.astype(np.float32), y.astype(np.float32)


def initial() -> Vector:
    """Give the parameters before the first step, (LENGTH,)."""
    return (((31 * np.arange(LENGTH)) % 17 - 8) / 64).astype(np.float32)

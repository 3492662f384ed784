"""Where bytes go that are read: a wanted box and the memory for it, or none, where it is only verified."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from mpickpt.errors import StateError
from mpickpt.state import dtypes
from mpickpt.state.region import Box, Shape


@dataclass(slots=True)
class Want:
    """A box that is wanted, and where it goes.

    Parameters
    ----------
    ordinal : int
        The region's place in the schema.
    box : Box
        Which part of it; not empty.
    out : numpy.ndarray or None
        Of the box's shape and the region's dtype, any strides and byte order; writeable. Of no use until all has been
        verified. None: every chunk that holds a part of the box is verified, and nothing is kept.
    """

    ordinal: int
    box: Box
    out: np.ndarray[Any, Any] | None


def check_destination(out: np.ndarray[Any, Any], shape: Shape, dtype: str, region: str) -> None:
    """Refuse a destination of another shape or dtype than the box that it is for, or a read-only one: StateError."""
    if out.shape != shape or dtypes.name_of(out.dtype, region) != dtype or not out.flags.writeable:
        raise StateError(
            "a destination has another shape or dtype than its box, or is read-only",
            region=region,
            expected=f"a writeable array of {dtype} and shape {shape}",
            found=f"{out.dtype} of shape {out.shape}",
        )

"""What flattening finds: what this owner holds, by region, and how to put the nest together again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import numpy as np

from mpickpt.state.layout import OnResize, Spec
from mpickpt.state.names import Key
from mpickpt.state.region import Box, Region

Mode: TypeAlias = Literal["boxes", "replicated", "per_owner"]

CONTAINERS = ("dict", "list", "tuple", "dict_int", "dataclass", "namedtuple", "object")
"""Kinds of `Capture.containers`. ``dict`` stands only where it is empty: a path with keys below it is a dict unless
it is something else. ``object`` may be followed by the kind of what its state_dict() gave: ``object list``."""


@dataclass(slots=True)
class Part:
    """A box of a region, and the array of its shape that holds it, or stands for it; any strides and byte order."""

    box: Box
    array: np.ndarray[Any, Any] | Spec


@dataclass(slots=True)
class Holding:
    """What this owner holds of one region.

    Attributes
    ----------
    region : Region
    mode : {"boxes", "replicated", "per_owner"}
        ``boxes``: Sharded or Split. ``replicated``: one part, the whole region, or `data`. ``per_owner``: `data`.
    copy : (int, int)
        ``(k, R)``: copy k of R.
    parts : list of Part
        Empty for opaque regions.
    data : bytes or None
        An opaque region's bytes; None in a destination.
    on_resize : {"refuse", "keep", "drop"}
        Of ``per_owner``.
    finite : bool
        False where an opaque region holds a NaN or an infinity; True in a destination and for arrays.
    """

    region: Region
    mode: Mode
    copy: tuple[int, int] = (0, 1)
    parts: list[Part] = field(default_factory=list)
    data: bytes | None = None
    on_resize: OnResize = "refuse"
    finite: bool = True


@dataclass(slots=True)
class Node:
    """One place in the user's nest: a container with its children by key, or a leaf (no children) by its name.

    Attributes
    ----------
    kind : str
        ``dict``, ``list``, ``tuple``, ``dataclass``, ``namedtuple``; or of a leaf ``array`` (one array), ``arrays``
        (a list of boxes), ``opaque``, ``object``.
    name : str
        Its escaped path.
    original : object
        The container, or what the leaf's wrapper holds.
    children : sequence of (key, Node)
    """

    kind: str
    name: str
    original: Any
    children: Sequence[tuple[Key, Node]]


@dataclass(slots=True)
class Capture:
    """A flattened state.

    Attributes
    ----------
    holdings : list of Holding
        Ordered by region name.
    containers : dict
        Escaped path -> one of `CONTAINERS`.
    nest : Node
        For `mpickpt.state.nest.commit`.
    open_prefixes : list of str
        Paths of objects with load_state_dict in a destination: they take whatever was saved below.
    """

    holdings: list[Holding]
    containers: dict[str, str]
    nest: Node
    open_prefixes: list[str]
    #: What `targets.in_place` has found, which has to look at every array.
    in_place: dict[str, list[Any]] | None = None


@dataclass(slots=True)
class Restored:
    """What was read for a destination, or as a whole.

    Attributes
    ----------
    arrays : dict
        Region name -> one array a part of the destination's holding, each of its box's shape; or the whole region
        alone, for names below open prefixes and where there is no destination.
    opaque : dict
        Region name -> its bytes.
    dropped : set of str
        per_owner regions of which None takes the place (`on_resize="drop"`). A name in neither keeps the
        destination's own.
    """

    arrays: dict[str, list[np.ndarray[Any, Any]]] = field(default_factory=dict)
    opaque: dict[str, bytes] = field(default_factory=dict)
    dropped: set[str] = field(default_factory=set)

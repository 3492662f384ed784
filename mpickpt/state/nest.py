"""Nested containers and names of regions, both ways. The parts lie in `names`, `capture`, `flatten` and `rebuild`."""

from __future__ import annotations

from mpickpt.state.capture import Capture, Holding, Node, Part, Restored
from mpickpt.state.flatten import flatten
from mpickpt.state.names import escape, join, split
from mpickpt.state.rebuild import build, check_containers, commit, prepare
from mpickpt.state.targets import check_destination, filled_alone, in_place

__all__ = [
    "Capture",
    "Holding",
    "Node",
    "Part",
    "Restored",
    "build",
    "check_containers",
    "check_destination",
    "commit",
    "escape",
    "filled_alone",
    "flatten",
    "in_place",
    "join",
    "prepare",
    "split",
]

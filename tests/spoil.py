"""Damage to one file of a scene's store."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from scene import Scene


def root_or_file(scene: Scene, kind: str, step: int = 2) -> Path:
    """Find a file of the generation of a step."""
    (root,) = (scene.path / "roots").glob(f"{step:012}-*.json")
    data = scene.path / "data" / root.stem / "00000"
    return {
        "root": root,
        "manifest": data / "000001.json",
        "shard": data / "000001.safetensors",
        "shared shard": data / "000000.r.safetensors",
        "claim": scene.path / "epochs" / "00000001.json",
        "run.json": scene.path / "run.json",
    }[kind]


def _remove(path: Path) -> None:
    path.unlink()


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-5])


def _empty(path: Path) -> None:
    path.write_bytes(b"")


def _lengthen(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"\0" * 16)


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-len(data) // 3] ^= 0x10
    path.write_bytes(data)


def _swap(path: Path) -> None:
    """Put the same file of the generation before in its place: whole, and of another save."""
    before = sorted(path.parents[2].glob(f"0*/00000/{path.name}"))[0]
    path.write_bytes(before.read_bytes())


DAMAGE: dict[str, tuple[str, Callable[[Path], None]]] = {
    "a claim that is missing": ("claim", _remove),  # before there is a newer one, which would carry the lineage
    "a root that is cut": ("root", _cut),
    "a root that is empty": ("root", _empty),
    "a root that goes on": ("root", _lengthen),
    "a root with one other bit": ("root", flip),
    "a manifest that is missing": ("manifest", _remove),
    "a manifest that is cut": ("manifest", _cut),
    "a manifest that goes on": ("manifest", _lengthen),
    "a manifest with one other bit": ("manifest", flip),
    "a manifest of another save": ("manifest", _swap),
    "a shard that is missing": ("shard", _remove),
    "a shard that is cut": ("shard", _cut),
    "a shard that is empty": ("shard", _empty),
    "a shard that goes on": ("shard", _lengthen),
    "a shard with one other bit": ("shard", flip),
    "a shard of another save": ("shard", _swap),
    "a shared shard that is missing": ("shared shard", _remove),
    "a shared shard with one other bit": ("shared shard", flip),
    "a claim that is cut": ("claim", _cut),
    "a claim with one other bit": ("claim", flip),
    "run.json with one other bit": ("run.json", flip),
}

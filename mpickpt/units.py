"""Numbers for people."""

from __future__ import annotations


def human(nbytes: float) -> str:
    """Write a number of bytes: ``1.5 GiB``."""
    value = float(nbytes)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if value < 1024:
            return f"{value:.0f} B" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} PiB"


def rate(nbytes_per_second: float) -> str:
    """Write a throughput: ``1.52 GB/s``."""
    return f"{nbytes_per_second / 1e9:.2f} GB/s" if nbytes_per_second >= 1e7 else f"{nbytes_per_second / 1e6:.2f} MB/s"


def seconds(count: float) -> str:
    """Write a duration: ``1.41 s``, ``12 ms``."""
    if count < 0.9995:
        return f"{1000 * count:.3g} ms"
    return f"{count:.3g} s" if count < 100 else f"{count:.0f} s"

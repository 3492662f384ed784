"""The version, said here alone: packaging, the command line and manifests read it."""

from __future__ import annotations

from typing import Final

__version__: Final = "0.1.0"

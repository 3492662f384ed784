"""The one place that imports the C extension.

To the checker of imports an extension is no module, and naming it counts as importing the whole package: the import
contract makes that exception for this file alone.
"""

from __future__ import annotations

from mpickpt import _native

__all__ = ["_native"]

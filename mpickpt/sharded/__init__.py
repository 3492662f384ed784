"""Many owners from one process: for tools, tests and converters; needs NumPy alone, and no MPI.

`save_sharded` writes one state dict a rank as one generation, `load_sharded` gives them back, `ShardManifest` tells
which file holds what. They are the files and the checks of everything else: each rank is a `mpickpt.Checkpointer` in a
thread of its own, and what is read hangs from the root's digest.

>>> import tempfile, numpy as np
>>> from mpickpt import sharded
>>> store = tempfile.mkdtemp() + "/run"
>>> manifest = sharded.save_sharded([{"w": np.zeros((2, 4))}, {"w": np.ones((1, 4))}], store, 7)
>>> [(shard.rank, shard.param_shard_offset, shard.param_shard_numel) for shard in manifest.shards]
[(0, 0, 8), (1, 8, 4)]
>>> [state["w"].shape for state in sharded.load_sharded(store, 2)]
[(2, 4), (1, 4)]
"""

from __future__ import annotations

from mpickpt.sharded.manifest import ShardFile, ShardManifest
from mpickpt.sharded.transfer import load_sharded, save_sharded

__all__ = ["ShardFile", "ShardManifest", "load_sharded", "save_sharded"]

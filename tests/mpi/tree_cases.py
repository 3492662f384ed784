"""Trees of real owners: saves, verification, resume, and what an owner sends; test_trees.py says what must come."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import crashkit
import rank
import treekit
from mpi4py import MPI as _MPI
from scene import counted, patched

import mpickpt
from mpickpt.cluster import grounds
from mpickpt.cluster.channel import Kind
from mpickpt.cluster.grounds import grounds_of

if TYPE_CHECKING:
    from mpi4py import MPI


def _tree(comm: MPI.Intracomm, directory: Path, fan_out: int) -> dict[str, Any]:
    """Save two steps in a star and in a tree, compare the two stores, and resume the tree's."""
    role, owners = comm.Get_rank(), comm.Get_size()
    star, tree = directory / "star", directory / "tree"
    treekit.saved(star, comm, (1, 2), topology="star")
    with counted(Kind.COMMIT) as sizes:
        sent = treekit.saved(tree, comm, (1, 2), topology="tree", fan_out=fan_out)
    found: dict[str, Any] = {"sent": sent, "commitments": sizes}
    rank.meet(comm)
    if role == 0:
        found["different"] = treekit.difference(star, tree)
        root = mpickpt.open_store(tree).open(2).root
        found["topology"], found["children"] = root.topology, [[one.role, one.size] for one in root.children]
    with mpickpt.Checkpointer(tree, comm, topology="tree", fan_out=fan_out) as ckpt:
        place = ckpt._wiring.place
        found["place"] = [place.height, [list(child) for child in place.children]]
        run = ckpt.resume(treekit.state(role, owners, 0))
        treekit.check(run.state, role, owners, 2)
        found["resumed"] = [run.step, run.cursor]
        found["next"] = ckpt.save(treekit.state(role, owners, 3), step=3, cursor=30).root
    return found


@rank.case
def a_tree_of_fan_out_2(comm: MPI.Intracomm, directory: Path) -> dict[str, Any]:
    """A high tree."""
    return _tree(comm, directory, 2)


@rank.case
def a_tree_of_fan_out_3(comm: MPI.Intracomm, directory: Path) -> dict[str, Any]:
    """Between the two."""
    return _tree(comm, directory, 3)


@rank.case
def a_tree_of_fan_out_16(comm: MPI.Intracomm, directory: Path) -> dict[str, Any]:
    """Up to 17 owners this is a star."""
    return _tree(comm, directory, 16)


def node_of(role: int, nodes: Sequence[int]) -> int:
    """Give the node of a role, on nodes of so many ranks each; the last one repeats."""
    at = 0
    while role >= nodes[min(at, len(nodes) - 1)]:
        role -= nodes[min(at, len(nodes) - 1)]
        at += 1
    return at


class Noded(_MPI.Intracomm):
    """A communicator that believes to be spread over several nodes."""

    nodes: Sequence[int] = (3,)

    def Split_type(self, kind: int, key: int = 0, info: Any = None) -> Any:
        """Split by the pretended nodes."""
        return self.Split(node_of(self.Get_rank(), self.nodes), key)


def noded(comm: MPI.Intracomm, *nodes: int) -> Noded:
    """Pretend nodes of so many ranks."""
    found = Noded(comm)
    found.nodes = nodes
    return found


@rank.case
def where_nodes_and_switches_begin(comm: MPI.Intracomm, directory: Path) -> Any:
    """As all owners find out: nodes of one size, of several, ranks dealt out in turn; a switch for every two nodes."""
    role, owners = comm.Get_rank(), comm.Get_size()
    found = [grounds_of(noded(comm, *nodes)) for nodes in ((1,), (2,), (3,), (owners,), (2, 1, 3), (1, 2, 2, 1))]
    dealt = noded(comm.Split(0, role), owners)
    dealt.Split_type = lambda kind, key=0, info=None: comm.Split(role % 2, role)  # type: ignore[method-assign]
    found.append(grounds_of(dealt))
    dealt.Free()
    os.environ["SLURM_TOPOLOGY_ADDR_PATTERN"] = "switch.switch.node"
    os.environ["SLURM_TOPOLOGY_ADDR"] = f"core.leaf{node_of(role, (2, 1)) // 2}.n{node_of(role, (2, 1))}"
    found.append(grounds_of(noded(comm, 2, 1)))
    if role == owners - 1:
        del os.environ["SLURM_TOPOLOGY_ADDR"]  # one that knows of no switches
    found.append(grounds_of(noded(comm, 2, 1)))
    del os.environ["SLURM_TOPOLOGY_ADDR_PATTERN"]
    os.environ.pop("SLURM_TOPOLOGY_ADDR", None)
    grounds.MOST = 1
    try:
        found.append(grounds_of(noded(comm, 2, 1)))
    finally:
        grounds.MOST = 1024
    return found


@rank.case
def a_tree_on_nodes_of_three(comm: MPI.Intracomm, directory: Path) -> Any:
    """Subtrees begin where nodes do."""
    return _on_nodes(comm, directory, 3)


@rank.case
def a_tree_on_nodes_of_many_sizes(comm: MPI.Intracomm, directory: Path) -> Any:
    """Subtrees begin where nodes do."""
    return _on_nodes(comm, directory, 2, 4, 1, 3)


def _on_nodes(comm: MPI.Intracomm, directory: Path, *nodes: int) -> Any:
    role, owners = comm.Get_rank(), comm.Get_size()
    options: dict[str, Any] = {"topology": "tree", "fan_out": 2}
    treekit.saved(directory / "run", comm, (1,), **options)
    with mpickpt.Checkpointer(directory / "run", noded(comm, *nodes), **options) as ckpt:
        run = ckpt.resume(treekit.state(role, owners, 0))
        treekit.check(run.state, role, owners, 1)
        ckpt.save(treekit.state(role, owners, 2), step=2, cursor=20)
        topology, place = ckpt._wiring.topology, ckpt._wiring.place
    return [topology.grounds, role, place.parent, [list(child) for child in place.children]]


@rank.case
def what_a_restore_opens(comm: MPI.Intracomm, directory: Path) -> Any:
    """In the shape that was saved: manifests of one's path, one's own shard; at owner 0 what all need as well.

    On hosts of their own: on one, each reads for itself what all need (test_passing.py).
    """
    with patched(socket, "gethostname", lambda: f"node{comm.Get_rank()}"):
        return _opened(comm, directory / "run")


def _opened(comm: MPI.Intracomm, path: Path) -> list[Any]:
    role, owners = comm.Get_rank(), comm.Get_size()
    options: dict[str, Any] = {"topology": "tree", "fan_out": 2}
    with mpickpt.Checkpointer(path, comm, **options) as ckpt:
        ckpt.save(treekit.state(role, owners, 1, copies=False), step=1)
    with mpickpt.Checkpointer(path, comm, **options) as ckpt:
        place = ckpt._wiring.place
        state = treekit.state(role, owners, 0, copies=False)
        with treekit.opens(path) as opened:
            run = ckpt.resume(state)
        treekit.check(run.state, role, owners, 1, copies=False)
        with treekit.opens(path) as whole:
            ckpt.resume(None, readonly=True)
    return [place.height, [name.partition("/")[2].partition("/")[2] or "root" for name in opened], len(whole)]


@rank.case
def saves_of_a_tiny_state(comm: MPI.Intracomm, directory: Path) -> Any:
    """Of each save the seconds that it took, those of them within this owner's syncs, and the messages it sent."""
    role, owners, found = comm.Get_rank(), comm.Get_size(), []
    with mpickpt.Checkpointer(directory / "run", comm, topology="tree", fan_out=16) as ckpt:
        for step in range(1, 8):
            state = crashkit.state(role, owners, step)
            rank.meet(comm)
            before, begun = ckpt._saves.counts["sent"], time.monotonic()
            with treekit.syncing() as seconds:
                ckpt.save(state, step=step)
            found.append([time.monotonic() - begun, seconds[0], ckpt._saves.counts["sent"] - before])
    return found


@rank.case
def what_auto_is(comm: MPI.Intracomm, directory: Path) -> bool:
    """Up to 32 owners a star."""
    with mpickpt.Checkpointer(directory / "run", comm) as ckpt:
        return ckpt._wiring.topology.star


# --- options that are refused


def _made(comm: MPI.Intracomm, directory: Path, **options: Any) -> dict[str, Any]:
    """Try to make a Checkpointer, then one that works."""
    found = rank.attempt(lambda: mpickpt.Checkpointer(directory / "run", comm, deadline=4.0, **options))
    found["made"] = (directory / "run").exists()
    rank.meet(comm)
    with mpickpt.Checkpointer(directory / "run", comm) as ckpt:
        found["next"] = ckpt.save(treekit.state(comm.Get_rank(), comm.Get_size(), 1), step=1).root
    return found


@rank.case
def another_topology(comm: MPI.Intracomm, directory: Path) -> Any:
    """The last owner wants a tree."""
    last = comm.Get_rank() == comm.Get_size() - 1
    return _made(comm, directory, topology="tree" if last else "star")


@rank.case
def another_fan_out(comm: MPI.Intracomm, directory: Path) -> Any:
    """Each owner but the first has one of its own."""
    return _made(comm, directory, topology="tree", fan_out=2 + comm.Get_rank())


@rank.case
def an_argument_out_of_range_at_the_last(comm: MPI.Intracomm, directory: Path) -> Any:
    """The last owner keeps no generation."""
    return _made(comm, directory, keep=0 if comm.Get_rank() == comm.Get_size() - 1 else 3)


@rank.case
def an_argument_out_of_range_at_owner_0(comm: MPI.Intracomm, directory: Path) -> Any:
    """Owner 0 cannot be told to stop by what is no signal."""
    return _made(comm, directory, signals=(0,) if comm.Get_rank() == 0 else ())


@rank.case
def gathered_in_a_tree(comm: MPI.Intracomm, directory: Path) -> Any:
    """Owner 0 cannot write for those that are not its children."""
    return _made(comm, directory, topology="tree", fan_out=2, write="gather")


if __name__ == "__main__":
    rank.main()

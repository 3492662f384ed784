"""A virtual cluster: a real Slurm with several nodes on this machine, for as long as one process wants it.

    with virtual.Cluster(folder, nodes=4) as cluster:
        cluster.run("sbatch", "job.sh")

    python tests/slurm/virtual.py [--nodes 4] [--cpus 2] [COMMAND...]     # a shell, or a command, on such a cluster

The whole cluster lives in namespaces of its own. The outer ones hold munged, slurmctld and all nodes: their process
ids, and a network that is a loopback and nothing else, so that ports are always free and nothing of it can be reached
from elsewhere. Each node is one slurmd in a further process-id, host name and mount namespace, with its own
/dev/shm and its own node-local disk. To kill a node is to kill the first process of its namespace: the kernel ends
everything in it at once, as a power cut would.

Nothing is left behind, however the process that wanted the cluster ends: the cluster's first process reads its
orders from a pipe, and where the pipe ends it ends too, and all others with it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

#: What must be there, and the package of Debian and Ubuntu that has it.
TOOLS = {
    "slurmctld": "slurmctld",
    "slurmd": "slurmd",
    "srun": "slurm-wlm",
    "munged": "munge",
    "unshare": "util-linux",
    "nsenter": "util-linux",
    "mount": "mount",
    "ip": "iproute2",
}
#: Seconds after which a node that says nothing is down, if nobody says so before.
_NODE_TIMEOUT = 60
#: Seconds from SIGTERM to SIGKILL when a job is ended.
KILL_WAIT = 8

_CONFIGURATION = """\
ClusterName=virtual
SlurmctldHost=controller(127.0.0.1)
SlurmctldPort=16800
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/log/slurmctld
SlurmdLogFile={folder}/log/slurmd-%n
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
TmpFS={folder}/local
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=1,bf_interval=1,sched_min_interval=0
SlurmdParameters=config_overrides
ReturnToService=2
SlurmctldTimeout=30
SlurmdTimeout={node_timeout}
KillWait={kill_wait}
MinJobAge=3600
JobRequeue=1
PropagateResourceLimits=NONE
NodeName=n[1-{nodes}] NodeAddr=127.0.0.1 Port=[16811-{last_port}] CPUs={cpus} RealMemory=4000 State=UNKNOWN
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
PartitionName=main Nodes=ALL Default=YES MaxTime=60 DefaultTime=10 PriorityTier=1 GraceTime=30 State=UP
PartitionName=urgent Nodes=ALL MaxTime=60 DefaultTime=10 PriorityTier=2 PreemptMode=OFF State=UP
"""


class Unavailable(Exception):
    """No virtual cluster can be made here; the message names what is missing."""


class Late(AssertionError):
    """Something did not happen in time; the message holds what the cluster's logs say last."""


def check() -> None:
    """Tell whether a cluster can be made here.

    Raises
    ------
    Unavailable
        If a tool is not there, or this user may not make namespaces.
    """
    absent = [f"{tool} (package {package})" for tool, package in TOOLS.items() if shutil.which(tool) is None]
    if absent:
        raise Unavailable(f"absent: {', '.join(absent)}")
    tried = subprocess.run([*_UNSHARE_ALL, "true"], capture_output=True, text=True, timeout=30)
    if os.geteuid() != 0 or tried.returncode != 0:
        raise Unavailable(f"only root can make a virtual cluster: unshare: {tried.stderr.strip() or 'not root'}")


_UNSHARE_NODE = ("unshare", "--fork", "--kill-child", "--pid", "--uts", "--ipc", "--mount", "--mount-proc")
_UNSHARE_ALL = (*_UNSHARE_NODE, "--net")


class Cluster:
    """A cluster that is up; ended by `down`, which leaving the with-block calls.

    Parameters
    ----------
    folder : Path
        Where its configuration, state and logs go. What an earlier cluster left there is removed.
    nodes, cpus : int
        How many nodes, n1 and on, and processors of each.
    environ : mapping, optional
        The environment of commands and, since Slurm passes it on, of jobs: the present one if not given.

    Attributes
    ----------
    local : Path
        The node-local disk: the same path on each node, another directory.
    """

    def __init__(
        self, folder: Path, nodes: int = 4, cpus: int = 2, environ: Mapping[str, str] | None = None, wait: float = 60.0
    ) -> None:
        check()
        self.folder = folder.resolve()
        self.nodes = [f"n{number + 1}" for number in range(nodes)]
        self.local = self.folder / "local"
        shutil.rmtree(self.folder, ignore_errors=True)
        for name in ("munge", "state", "log", "local", *(f"local-{node}" for node in self.nodes)):
            (self.folder / name).mkdir(parents=True)
        (self.folder / "munge").chmod(0o755)
        self.configuration = self.folder / "slurm.conf"
        self.configuration.write_text(
            _CONFIGURATION.format(
                folder=self.folder,
                nodes=nodes,
                cpus=cpus,
                last_port=16810 + nodes,
                node_timeout=_NODE_TIMEOUT,
                kill_wait=KILL_WAIT,
            )
        )
        # Nodes share /tmp, in which all would make the same directory for a step.
        (self.folder / "mpi.conf").write_text(f"PMIxCliTmpDirBase={self.local}\n")
        names = "".join(f"127.0.0.1 {node}\n" for node in ("localhost", "controller", *self.nodes))
        (self.folder / "hosts").write_text(names)
        self.environ = dict(os.environ if environ is None else environ) | {"SLURM_CONF": str(self.configuration)}
        with open(self.folder / "log" / "first", "wb") as log:
            self._outer = subprocess.Popen(
                [*_UNSHARE_ALL, sys.executable, __file__, "--first", str(self.folder), json.dumps(self.nodes)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={**os.environ, "SLURM_CONF": str(self.configuration)},
            )
        try:
            self._first = int(self.until(self._child, 10, "the first process has started"))
            self.until(lambda: len(self.up()) == nodes, wait, f"all {nodes} nodes are up")
        except BaseException:
            self.down()
            raise

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.down()

    def down(self) -> None:
        """End the cluster, every process of it, at once; the folder stays."""
        if self._outer.stdin is not None:
            with contextlib.suppress(OSError):
                self._outer.stdin.close()
        try:
            self._outer.wait(5)
        except subprocess.TimeoutExpired:
            self._outer.kill()  # with --kill-child: the first process too, and with it its namespace
            self._outer.wait()

    def run(
        self,
        *command: str | Path,
        timeout: float = 30.0,
        check: bool = True,
        env: Mapping[str, str] | None = None,
        **more: Any,
    ) -> str:
        """Run a command of Slurm, or any other, at the cluster; give what it printed.

        Raises
        ------
        AssertionError
            If it failed, unless `check` is False.
        """
        done = subprocess.run(
            self.command(*command),
            capture_output=True,
            text=True,
            timeout=timeout,
            env=self.environ if env is None else {**env, "SLURM_CONF": str(self.configuration)},
            **more,
        )
        assert not check or done.returncode == 0, f"{command}: {done.returncode}\n{done.stdout}{done.stderr}"
        return (done.stdout + ("" if check else done.stderr)).strip()

    def command(self, *command: str | Path) -> list[str]:
        """Give the command line that runs `command` in the cluster's network."""
        return ["nsenter", "-t", str(self._first), "--net", "--", *map(str, command)]

    # -- nodes

    def up(self) -> list[str]:
        """List the nodes that can run something."""
        lines = self.run("sinfo", "-h", "-N", "-p", "main", "-o", "%N %t", check=False).splitlines()
        pairs = [line.split() for line in lines]
        return [pair[0] for pair in pairs if len(pair) == 2 and pair[1] in ("idle", "mix", "alloc")]

    def kill(self, node: str) -> None:
        """End everything on a node at once (SIGKILL), and say that it is down, instead of the wait for its silence."""
        self._order("kill", node)
        self.run("scontrol", "update", f"nodename={node}", "state=down", "reason=killed")

    def start(self, node: str, wait: float = 30.0) -> None:
        """Bring a node back."""
        self._order("start", node)
        self.until(lambda: node in self.up(), wait, f"{node} is back")

    def _order(self, what: str, node: str) -> None:
        assert node in self.nodes
        done = self.folder / f"{what}-{node}"
        assert self._outer.stdin is not None
        self._outer.stdin.write(f"{what} {node}\n".encode())
        self._outer.stdin.flush()
        self.until(done.exists, 10, f"{what} {node}")
        done.unlink()

    # -- jobs

    def submit(self, *arguments: str | Path, **more: Any) -> str:
        """Run ``sbatch``; give the job's id."""
        return self.run("sbatch", "--parsable", *arguments, **more)

    def job(self, job: str) -> dict[str, str]:
        """Give what ``scontrol show job`` says of a job."""
        words = self.run("scontrol", "-o", "show", "job", job).split()
        return dict(word.split("=", 1) for word in words if "=" in word)

    def state(self, job: str) -> str:
        """Give a job's state, such as RUNNING."""
        return self.job(job)["JobState"]

    def until_state(self, job: str, *states: str, wait: float = 60.0) -> str:
        """Wait until a job is in one of some states."""
        return str(self.until(lambda: (s := self.state(job)) in states and s, wait, f"job {job} is {'/'.join(states)}"))

    def until(self, condition: Callable[[], Any], wait: float, what: str) -> Any:
        """Wait until something is true, and give it.

        Raises
        ------
        Late
            If it is not after `wait` seconds.
        """
        end = time.monotonic() + wait
        while not (found := condition()):
            if time.monotonic() > end:
                raise Late(f"after {wait:g} s not: {what}\n{self.logs()}")
            time.sleep(0.1)
        return found

    def logs(self) -> str:
        """Give the ends of all logs, for the message of a failure."""
        found = []
        for path in sorted((self.folder / "log").iterdir()):
            found.append(f"--- {path.name}\n" + "\n".join(path.read_text(errors="replace").splitlines()[-12:]))
        return "\n".join(found)

    def _child(self) -> str | None:
        if self._outer.poll() is not None:
            raise Late(f"the cluster ended at once\n{self.logs()}")
        children = _children(self._outer.pid)
        return children[0] if children else None


def _children(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


# -- the first process of the cluster


class _First:
    """What runs as process 1 of the cluster: starts the daemons and nodes, kills nodes, reaps, ends with its pipe."""

    def __init__(self, folder: Path, nodes: list[str]) -> None:
        self.folder = folder
        self.nodes: dict[str, subprocess.Popen[bytes]] = {}
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        _network_up()
        socket.sethostname("controller")
        subprocess.run(["mount", "--bind", str(folder / "hosts"), "/etc/hosts"], check=True, timeout=20)
        munge = folder / "munge"
        (munge / "key").write_bytes(os.urandom(1024))
        (munge / "key").chmod(0o400)
        options = {"key-file": "key", "socket": "socket", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
        subprocess.run(
            ["munged", "--force", *(f"--{name}={munge / file}" for name, file in options.items())],
            check=True,
            timeout=20,
        )
        self.daemon = subprocess.Popen(["slurmctld", "-D", "-f", str(folder / "slurm.conf")], stdin=subprocess.DEVNULL)
        for node in nodes:
            self.start(node)

    def serve(self) -> None:
        """Obey until the pipe ends; the end of this process is the end of all."""
        for line in sys.stdin:
            what, node = line.split()
            {"kill": self.kill, "start": self.start}[what](node)
            (self.folder / f"{what}-{node}").touch()
        os._exit(0)

    def start(self, node: str) -> None:
        for name in ("spool", "local"):
            (self.folder / f"{name}-{node}").mkdir(exist_ok=True)
        # The shell stays as the first process of the node and reaps what becomes its own.
        script = (
            'hostname "$1" && mount --bind "$2/local-$1" "$2/local" && '
            'mount -t tmpfs -o size=2g tmpfs /dev/shm && { slurmd -D -N "$1" & wait $!; }'
        )
        self.nodes[node] = subprocess.Popen(
            [*_UNSHARE_NODE, "--propagation", "private", "bash", "-c", script, "node", node, str(self.folder)],
            stdin=subprocess.DEVNULL,
        )

    def kill(self, node: str) -> None:
        unshare = self.nodes[node]
        first = int(_children(unshare.pid)[0])
        unshare.kill()  # with --kill-child: the first process of the node, and with it all of its namespace
        unshare.wait()
        os.waitpid(first, 0)  # it is ours now, and ends after all others of its namespace


def _network_up() -> None:
    """Set up this network namespace: a loopback, and a pair that leads nowhere, since MPIs shun a loopback."""
    for command in (
        "link set lo up",
        "link add eth0 type veth peer name eth1",
        "address add 10.10.10.10/24 dev eth0",
        "link set eth0 up",
        "link set eth1 up",
    ):
        subprocess.run(["ip", *command.split()], check=True, timeout=20)


def _main() -> int:
    if sys.argv[1:2] == ["--first"]:
        _First(Path(sys.argv[2]), json.loads(sys.argv[3])).serve()
    parser = argparse.ArgumentParser(description="Run a command, or a shell, on a virtual cluster.")
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--cpus", type=int, default=2)
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="virtual-") as folder:
        Path(folder).chmod(0o755)
        with Cluster(Path(folder) / "cluster", options.nodes, options.cpus) as cluster:
            command = options.command or [os.environ.get("SHELL", "bash")]
            return subprocess.run(cluster.command(*command), env=cluster.environ).returncode


if __name__ == "__main__":
    sys.exit(_main())

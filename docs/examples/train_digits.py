"""Train a small neural network on the handwritten digits of scikit-learn, data-parallel over MPI, with checkpoints.

    mpirun -n 4 python -m mpi4py train_digits.py runs/digits       # or, without MPI: python train_digits.py runs/digits

Kill it whenever you like; the same command goes on from the last checkpoint and ends, bit for bit, where an
uninterrupted run ends. Told to stop by SIGTERM, SIGUSR1 or the end of its time it saves, and ends with exit code 75:
start it again. It ends with 5 where a newer job has gone on with the run, and with 0 where it is done, or where a
person has put a file `stop` in the store. Whatever is refused is said once, and ends it with that refusal's exit code.

The state is spread as in large trainings: the owners compute with a float16 working copy of the parameters, equal on
all of them, while the float32 master parameters and Adam's two moments are split over the owners (ZeRO-1). Each owner
has its own random generator, for the noise that it adds to its samples. The input cursor says which samples come next.

Sums over owners are taken in the order of their ranks, never in the order of arrival, so that a run is reproducible
bit for bit for a given number of owners.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

# One thread an owner: the owners are the parallelism, and sums inside the matrix products keep one order.
for _variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_variable, "1")

import numpy as np  # noqa: E402 - reads the variables when it is loaded

import mpickpt  # noqa: E402
from mpickpt import launch  # noqa: E402

try:
    from mpi4py import MPI
except ImportError:  # one process, no MPI: everything below works the same
    comm: Any = None
else:
    comm = MPI.COMM_WORLD

rank: int = 0 if comm is None else comm.Get_rank()
size: int = 1 if comm is None else comm.Get_size()

SHAPES = {"w1": (64, 32), "b1": (32,), "w2": (32, 10), "b2": (10,)}
TOTAL = sum(int(np.prod(shape)) for shape in SHAPES.values())
COUNTS = [len(share) for share in mpickpt.shares(TOTAL, size)]  # of the parameters, how many each owner keeps
BATCH = 64  # samples of one step, of all owners together
NOISE = 0.1  # standard deviation of the noise on the pixels, which lie between 0 and 1
RATE, DECAY = 3e-3, 0.997  # of Adam; the rate is multiplied by the decay after every step
SEED = 17


def digits() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Read 1797 images of 8 x 8 pixels: training images and labels, test images and labels.

    It is the file behind ``sklearn.datasets.load_digits()``; importing scikit-learn would take each owner seconds.
    """
    found = importlib.util.find_spec("sklearn")
    if found is None or found.origin is None:
        raise SystemExit("train_digits needs the data of scikit-learn: pip install scikit-learn")
    table = np.loadtxt(Path(found.origin).parent / "datasets" / "data" / "digits.csv.gz", delimiter=",")
    table = table[np.random.default_rng(SEED).permutation(len(table))]
    images, labels = (table[:, :-1] / 16).astype(np.float32), table[:, -1].astype(np.int64)
    return images[:1536], labels[:1536], images[1536:], labels[1536:]


def samples(cursor: int, count: int, length: int) -> np.ndarray:
    """Say which samples come next after `cursor` inputs: each pass over the data has its own order."""
    places = np.arange(cursor, cursor + count)
    orders = {turn: np.random.default_rng([SEED, int(turn)]).permutation(length) for turn in set(places // length)}
    return np.array([orders[place // length][place % length] for place in places])


def views(flat: np.ndarray) -> dict[str, np.ndarray]:
    """Cut one flat array into the arrays of the network, without copying."""
    found, start = {}, 0
    for name, shape in SHAPES.items():
        stop = start + int(np.prod(shape))
        found[name] = flat[start:stop].reshape(shape)
        start = stop
    return found


def forward(model: dict[str, np.ndarray], x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Give the hidden layer and the log-probabilities of the ten digits; computed in float32."""
    w = {name: array.astype(np.float32) for name, array in model.items()}
    hidden = np.maximum(x @ w["w1"] + w["b1"], 0)
    logits = hidden @ w["w2"] + w["b2"]
    logits -= logits.max(axis=1, keepdims=True)
    return hidden, logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))


def gradient(model: dict[str, np.ndarray], x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, float]:
    """Give this owner's part of the gradient of the mean loss of the whole batch, flat, and of that loss."""
    hidden, logp = forward(model, x)
    loss = -float(logp[np.arange(len(y)), y].sum()) / BATCH
    error = np.exp(logp)
    error[np.arange(len(y)), y] -= 1
    error /= BATCH
    below = (error @ model["w2"].astype(np.float32).T) * (hidden > 0)
    parts = (x.T @ below, below.sum(axis=0), hidden.T @ error, error.sum(axis=0))
    return np.concatenate([part.ravel() for part in parts]).astype(np.float32), loss


def all_parts(mine: np.ndarray) -> np.ndarray:
    """Give the arrays of all owners (one shape), stacked in the order of their ranks."""
    every = np.empty((size, *mine.shape), mine.dtype)
    if comm is None:
        every[0] = mine
    else:
        comm.Allgather(np.ascontiguousarray(mine).view(np.uint8), every.view(np.uint8))
    return every


def in_order(parts: np.ndarray) -> np.ndarray:
    """Add along the first axis, strictly from first to last: the same bits every time."""
    result: np.ndarray = np.zeros_like(parts[0])
    for part in parts:
        result += part
    return result


def sum_my_share(partial: np.ndarray) -> np.ndarray:
    """Give this owner's share of the sum of all owners' arrays: each part is sent to the one who needs it."""
    if comm is None:
        return partial
    received = np.empty((size, COUNTS[rank]), np.float32)
    comm.Alltoallv([partial, COUNTS], [received, [COUNTS[rank]] * size])
    return in_order(received)


def gather_shares(share: np.ndarray, into: np.ndarray) -> None:
    """Put the shares of all owners together, on every owner."""
    if comm is None:
        into[:] = share
    else:  # as bytes: MPI has no name for float16
        wide = share.dtype.itemsize
        comm.Allgatherv(share.view(np.uint8), [into.view(np.uint8), [count * wide for count in COUNTS]])


def main() -> int:
    """Train, from the last checkpoint if there is one; give the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store", help="directory of the run's checkpoints")
    parser.add_argument("--steps", type=int, default=300, help="steps of the whole run (default: %(default)s)")
    parser.add_argument("--every", type=int, default=10, help="steps between checkpoints (default: %(default)s)")
    parser.add_argument("--write", choices=("each", "gather"), default="each", help="who writes (default: %(default)s)")
    parser.add_argument("--keep", type=int, default=3, help="checkpoints to keep (default: %(default)s)")
    parser.add_argument("--repartition", action="store_true", help="go on with another number of owners")
    parser.add_argument("--kill-at-step", type=int, metavar="N", help="end with SIGKILL before step N is taken")
    parser.add_argument("--report", metavar="FILE", help="write what a program wants to know about the run as JSON")
    options = parser.parse_args()

    images, labels, test_images, test_labels = digits()
    mine = slice(sum(COUNTS[:rank]), sum(COUNTS[: rank + 1]))

    # The state. Everything that the rest of the run depends on is here; `state` below hands it to mpickpt.
    start = np.random.default_rng(SEED)
    full = np.concatenate([(start.standard_normal(s) / np.sqrt(s[0]) * (len(s) > 1)).ravel() for s in SHAPES.values()])
    master = full[mine].astype(np.float32)  # this owner's share of the float32 parameters
    m, v = np.zeros_like(master), np.zeros_like(master)  # Adam's moments of that share
    working = full.astype(np.float32).astype(np.float16)  # all parameters, equal on all owners
    model = views(working)
    lr = RATE
    rng = np.random.default_rng([SEED, rank])  # this owner's own

    def state() -> dict[str, Any]:
        return {
            "model": model,
            "opt": {name: mpickpt.Split(x, length=TOTAL) for name, x in (("master", master), ("m", m), ("v", v))}
            | {"lr": lr},
            # With --repartition each owner begins its own generator anew: there is none to take over for a new owner.
            "rng": mpickpt.PerOwner(rng, on_resize="keep"),
        }

    contract = mpickpt.Contract(
        identity={"model": "mlp-64-32-10", "optimizer": "adam", "lr": RATE, "decay": DECAY, "data": "digits-1536"},
        numerics={"working": "float16", "master": "float32", "sums": "by rank"},
    )

    took: list[float] = []  # seconds of each save
    root = None
    ways: dict[str, Any] = {
        "write": options.write,
        "keep": options.keep,
        "every": options.every,
        "signals": (signal.SIGTERM, signal.SIGUSR1),
    }
    with mpickpt.Checkpointer(options.store, comm, contract=contract, **ways) as ckpt:
        run = ckpt.resume(state(), repartition=options.repartition)
        lr, cursor = run.value("opt/lr", lr), run.cursor
        say(f"{size} owners, {TOTAL} parameters; {'fresh start' if run.fresh else f'resumed at step {run.step}'}")
        for step in range(run.step, options.steps):
            if step == options.kill_at_step:
                os.kill(os.getpid(), signal.SIGKILL)
            batch = samples(cursor, BATCH, len(images))
            part = mpickpt.shares(BATCH, size)[rank]
            chosen = batch[part.start : part.stop]
            x = images[chosen] + NOISE * rng.standard_normal((len(chosen), 64), dtype=np.float32)
            partial, loss = gradient(model, x, labels[chosen])
            g = sum_my_share(partial)
            # Adam (Kingma and Ba, arXiv:1412.6980, algorithm 1) on this owner's share, in place.
            m += np.float32(0.1) * (g - m)
            v += np.float32(0.001) * (g * g - v)
            unbiased = np.sqrt(v / np.float32(1 - 0.999 ** (step + 1))) + np.float32(1e-8)
            master -= np.float32(lr) * (m / np.float32(1 - 0.9 ** (step + 1))) / unbiased
            gather_shares(master.astype(np.float16), into=working)
            lr *= DECAY
            cursor += BATCH
            if ckpt.due(step + 1) or step + 1 == options.steps:
                begun = time.perf_counter()
                root = ckpt.save(state(), step=step + 1, cursor=cursor).wait()
                took.append(time.perf_counter() - begun)
                mean = float(in_order(all_parts(np.array([loss])))[0])
                right = float(np.mean(forward(model, test_images)[1].argmax(axis=1) == test_labels))
                say(f"step {step + 1}: loss {mean:.4f}, test accuracy {right:.3f}, saved {root[:19]}")
            if ckpt.stopping:
                break
        latest = ckpt.latest()
    if latest is None:
        say("no step was taken and nothing is saved")
        return ckpt.exit_code
    root = latest.root

    # A digest of all that this owner has in the end; those of all owners, in order, give the digest of the end state.
    own = hashlib.sha256()
    for array in (working, master, m, v, np.array([lr, cursor])):
        own.update(array.tobytes())
    own.update(json.dumps(rng.bit_generator.state, sort_keys=True, default=int).encode())
    every = all_parts(np.frombuffer(own.digest(), np.uint8))
    end = hashlib.sha256(every.tobytes()).hexdigest()
    right = float(np.mean(forward(model, test_images)[1].argmax(axis=1) == test_labels))
    say(f"end: step {latest.step}, test accuracy {right:.3f}, state sha256:{end}")
    if options.report and rank == 0:
        facts = {
            "owners": size,
            "began": run.step,
            "steps": options.steps,
            "accuracy": right,
            "digest": end,
            "root": root,
            "nbytes": latest.nbytes,
            "saves": took,
        }
        Path(options.report).write_text(json.dumps(facts))
    if latest.step >= options.steps:
        return 0
    say(f"stopped by {ckpt.stopped_by}")
    return ckpt.exit_code


def say(line: str) -> None:
    """Print on owner 0."""
    if rank == 0:
        print(line, flush=True)


def tell(refusal: mpickpt.CheckpointError) -> int:
    """Say what was refused; give the exit code. All owners are refused alike, so one of them says it."""
    # Where MPI has not found the others (the wrong `srun --mpi`), all are its number 0, but not their launcher's.
    number = rank if size > 1 else launch.detect().rank
    lost = isinstance(refusal, (mpickpt.DeadlineError, mpickpt.InDoubtError))
    if number == 0 or lost:
        print(f"{type(refusal).__name__}: {refusal}", file=sys.stderr, flush=True)
    if lost and size > 1:  # an owner is silent, maybe owner 0: MPI.Finalize would wait for it
        time.sleep(1)  # an abort loses what the launcher has not read yet
        comm.Abort(refusal.exit_code)
    return refusal.exit_code


if __name__ == "__main__":
    try:
        code = main()
    except mpickpt.CheckpointError as refusal:
        code = tell(refusal)
    if comm is not None:
        MPI.Finalize()  # before an exit code other than 0, for which `-m mpi4py` would otherwise call MPI's abort
    sys.exit(code)

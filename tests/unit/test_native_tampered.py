"""The C extension where calls fall short, are interrupted, fail or take long; and that it holds no interpreter lock."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

WITH_STRACE = pytest.mark.skipif(shutil.which("strace") is None, reason="strace is absent")


def test_short_transfers_are_resumed(tmp_path: Path) -> None:
    """A library before the C library's moves at most 1000 bytes a call, and is interrupted at every third."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("cc is absent")
    (tmp_path / "shim.c").write_text(
        textwrap.dedent("""
        #define _GNU_SOURCE
        #include <errno.h>
        #include <sys/syscall.h>
        #include <unistd.h>
        long calls;
        static int interrupted(void) { errno = EINTR; return ++calls % 3 == 0; }
        ssize_t pwrite(int fd, const void *at, size_t size, off_t offset)
        { return interrupted() ? -1 : syscall(SYS_pwrite64, fd, at, size < 1000 ? size : 1000, offset); }
        ssize_t pread(int fd, void *at, size_t size, off_t offset)
        { return interrupted() ? -1 : syscall(SYS_pread64, fd, at, size < 1000 ? size : 1000, offset); }
        """)
    )
    subprocess.run([compiler, "-shared", "-fPIC", "-o", tmp_path / "shim.so", tmp_path / "shim.c"], check=True)
    program = """
        import ctypes, os, sys
        from mpickpt import _native
        fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
        data, into = os.urandom(100_001), bytearray(100_002)
        _native.pwrite_all(fd, data, 5)
        assert _native.pread_full(fd, into, 5) == 100_001
        assert into[:-1] == data
        assert ctypes.c_long.in_dll(ctypes.CDLL(sys.argv[2]), "calls").value > 300
    """
    # A sanitizer's library, if there is one, has to stay the first.
    preload = f"{os.environ.get('LD_PRELOAD', '')} {tmp_path / 'shim.so'}".strip()
    command = [sys.executable, "-c", textwrap.dedent(program), str(tmp_path / "f"), str(tmp_path / "shim.so")]
    done = subprocess.run(command, env=os.environ | {"LD_PRELOAD": preload}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def _under_strace(tmp_path: Path, inject: str, program: str) -> list[str]:
    """Run a program whose system calls are tampered with; give the traced ones, one a line."""
    trace = tmp_path / "trace"
    preload = [f"--env=LD_PRELOAD={value}"] if (value := os.environ.get("LD_PRELOAD")) else []
    environment = {key: value for key, value in os.environ.items() if key != "LD_PRELOAD"}
    names = inject.split(":", 1)[0]
    done = subprocess.run(
        ["strace", "--follow-forks", *preload, f"--trace={names}", f"--inject={inject}", f"--output={trace}",
         sys.executable, "-c", textwrap.dedent(program), str(tmp_path)],
        env=environment, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return [line for line in trace.read_text().splitlines() if "(" in line and "exited" not in line]


@WITH_STRACE
@pytest.mark.parametrize("error", ["EINTR", "EIO", "ENOSPC"])
def test_fsync_is_never_repeated(tmp_path: Path, error: str) -> None:
    program = f"""
        import errno, os, sys
        from mpickpt import _native
        fd = os.open(sys.argv[1] + "/f", os.O_RDWR | os.O_CREAT)
        try:
            _native.fsync(fd)
        except OSError as error:
            assert error.errno == errno.{error}
        else:
            raise AssertionError("the error was passed over")
    """
    assert len(_under_strace(tmp_path, f"fsync:error={error}", program)) == 1


@WITH_STRACE
def test_what_a_kernel_lacks_is_quiet_only_where_it_is_a_hint(tmp_path: Path) -> None:
    program = """
        import errno, os, sys
        from mpickpt import _native
        fd = os.open(sys.argv[1] + "/f", os.O_RDWR | os.O_CREAT)
        _native.sync_range(fd, 0, 1, True)
        _native.preallocate(fd, 4096)
        assert not _native.have_renameat2
        f, g = sys.argv[1] + "/f", sys.argv[1] + "/g"
        for call in (lambda: _native.rename_noreplace(f, g), lambda: _native.fsync(fd)):
            try:
                call()
            except OSError as error:
                assert error.errno == errno.ENOSYS
            else:
                raise AssertionError("the error was passed over")
    """
    calls = "sync_file_range,fallocate,renameat2,fsync"
    assert len(_under_strace(tmp_path, f"{calls}:error=ENOSYS", program)) == 5


@WITH_STRACE
@pytest.mark.parametrize("error", ["ENOSPC", "EDQUOT"])
def test_no_room_is_known_at_once(tmp_path: Path, error: str) -> None:
    program = f"""
        import errno, os, sys
        from mpickpt import _native
        fd = os.open(sys.argv[1] + "/f", os.O_RDWR | os.O_CREAT)
        try:
            _native.preallocate(fd, 4096)
        except OSError as error:
            assert error.errno == errno.{error}
        else:
            raise AssertionError("the error was passed over")
    """
    assert len(_under_strace(tmp_path, f"fallocate:error={error}", program)) == 1


# A thread that holds the interpreter lock only for moments counts on. With a switch interval of minutes nothing takes
# the lock from the caller: the count grows during a call only if the call itself lets go of the lock.
TICKS = """
    import sys, threading, time
    ticks, stop = 0, False

    def tick():
        global ticks
        while not stop:
            ticks += 1
            time.sleep(0.001)

    def moves(call):
        before = ticks
        call()
        return ticks - before
    threading.Thread(target=tick, daemon=True).start()
    while not ticks:
        time.sleep(0.001)
    sys.setswitchinterval(600)
"""


@WITH_STRACE
def test_system_calls_hold_no_interpreter_lock(tmp_path: Path) -> None:
    program = (
        TICKS
        + """
    import os
    from mpickpt import _native
    fd, base = os.open(sys.argv[1] + "/f", os.O_RDWR | os.O_CREAT), sys.argv[1]
    calls = {
        "rename": lambda: _native.rename_noreplace(base + "/f", base + "/g"),
        "link": lambda: _native.link(base + "/g", base + "/h"),
        "fsync": lambda: _native.fsync(fd),
        "sync_range": lambda: _native.sync_range(fd, 0, 1, True),
        "pwrite": lambda: _native.pwrite_all(fd, b"x", 0),
        "pread": lambda: _native.pread_full(fd, bytearray(1), 0),
        "statfs": lambda: _native.statfs_type(base),
        "preallocate": lambda: _native.preallocate(fd, 4096),
    }
    held = [name for name, call in calls.items() if moves(call) < 5]
    stop = True
    assert not held, held
    """
    )
    calls = "renameat2,linkat,fsync,sync_file_range,pwrite64,pread64,statfs,fallocate"
    _under_strace(tmp_path, f"{calls}:delay_enter=150000", program)


@pytest.mark.parametrize(
    "call",
    [
        "_native.crc32c(data)",
        "_native.crc32c_table(data)",
        *(f"_native.first_nonfinite(data, {n!r})" for n in ("float16", "float8_e5m2", "float32", "complex128")),
        "_native.first_nonfinite_portable(data, 'float64')",
    ],
)
def test_byte_kernels_hold_no_interpreter_lock(call: str) -> None:
    program = (
        TICKS
        + f"""
    from mpickpt import _native
    data = bytes(1 << 28)
    seen = any(moves(lambda: {call}) for _ in range(300))  # many: other processes may have the cores
    stop = True
    assert seen
    """
    )
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_lock_test_can_fail() -> None:
    """A call that keeps the lock, by ctypes.PyDLL, stops the count."""
    program = (
        TICKS
        + """
    import ctypes
    seen = moves(lambda: ctypes.PyDLL(None).usleep(100_000))
    stop = True
    assert seen == 0, seen
    """
    )
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr

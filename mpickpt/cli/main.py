"""The group of commands, and the one place that turns refusals into exit codes.

Exit codes: 0 well, 2 usage, a refusal's own `CheckpointError.exit_code` (1, 3, 4, 5, 6, 7), 130 after Ctrl-C, 141
when the reader of a pipe has gone (as if by SIGPIPE). Messages go to stderr, results to stdout; no traceback is shown.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import sys
import traceback
from collections.abc import Sequence
from typing import Any, Final

import click

from mpickpt._version import __version__
from mpickpt.cli import output
from mpickpt.errors import CheckpointError, StoreError

INTERRUPTED: Final = 130
CLOSED_PIPE: Final = 141
USAGE: Final = 2

COMMANDS: Final = {
    "ls": "The generations of a run.",
    "show": "What one generation holds, and who holds it.",
    "verify": "Check every file of a generation: a verdict a file.",
    "diff": "What differs between two generations, region by region.",
    "sweep": "Remove what failed attempts left behind.",
    "fsprobe": "What the file system of a directory can do and promises.",
    "gate": "Prove on this cluster what is promised: the verification gates (needs MPI).",
    "bench": "Measure a file system, and what of it saves and restores reach.",
    "demo": "Train, kill, resume, and compare with an uninterrupted run (needs MPI).",
}


class Commands(click.Group):
    """A group that imports a command's file when the command is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Give all names, in the order of use."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import one command."""
        if cmd_name not in COMMANDS:
            return None
        module = "demo_command" if cmd_name == "demo" else cmd_name
        command = importlib.import_module(f"mpickpt.cli.{module}").command
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def main(  # type: ignore[override]
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> int:
        """Run a command line; exit with its code, or return it where not `standalone_mode`."""
        told = _Warnings()
        logging.getLogger("mpickpt").addHandler(told)
        try:
            return self._finish(args, prog_name, standalone_mode, extra)
        finally:
            logging.getLogger("mpickpt").removeHandler(told)

    def _finish(self, args: Sequence[str] | None, prog_name: str | None, leave: bool, extra: dict[str, Any]) -> int:
        """Run a command line, then write its last words, whatever became of it."""
        code, message = self._run(list(sys.argv[1:] if args is None else args), prog_name or "mpickpt", extra)
        unwritten, reason = _flush()
        if message or reason:
            _say(message or reason)
        code = code or unwritten
        if leave:
            sys.exit(code)
        return code

    def _run(self, args: list[str], prog_name: str, extra: dict[str, Any]) -> tuple[int, str]:
        """Run a command; give its code and what stderr is to say, after all that stdout says."""
        try:
            with self.make_context(prog_name, args, **extra) as context:
                code = self.invoke(context)
            return (code if isinstance(code, int) else 0), ""
        except click.exceptions.Exit as end:
            return end.exit_code, ""
        except click.ClickException as error:
            error.show()
            return USAGE, ""
        except (KeyboardInterrupt, click.Abort):
            return INTERRUPTED, "interrupted"
        except CheckpointError as error:
            return error.exit_code, _refusal(error)
        except BrokenPipeError:
            return CLOSED_PIPE, ""
        except OSError as error:
            place = f": {error.filename}" if error.filename else ""
            return StoreError.exit_code, f"{error.strerror or error}{place}"
        except Exception as error:  # a fault of ours: a report needs the place, nobody needs the traceback
            frame = traceback.extract_tb(error.__traceback__)[-1]
            place = f"{os.path.basename(frame.filename)}:{frame.lineno}"
            return CheckpointError.exit_code, f"internal error at {place}: {type(error).__name__}: {error}"


class _Warnings(logging.Handler):
    """Writes what the library warns of to stderr, each warning once."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.said: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        """Write one warning."""
        text = record.getMessage()
        if text not in self.said:
            self.said.add(text)
            _say(f"warning: {text}")


def _say(message: str) -> None:
    """Write a message to stderr: its lines kept, its control characters not."""
    text = "\n".join(output.printable(line) for line in f"mpickpt: {message}".split("\n"))
    with contextlib.suppress(OSError):  # nobody listens on stderr; the exit code still speaks
        click.echo(text.encode("utf-8", "backslashreplace"), err=True)


def _flush() -> tuple[int, str]:
    """Flush stdout; where that fails, give code and reason, and let the interpreter's own flush at exit go nowhere."""
    try:
        output.flush()
        return 0, ""
    except BrokenPipeError:
        failed = CLOSED_PIPE, ""
    except StoreError as error:
        failed = error.exit_code, _refusal(error)
    with contextlib.suppress(OSError, ValueError):  # no real file behind stdout: nothing that would fail at exit
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)
    return failed


def _refusal(error: CheckpointError) -> str:
    return f"{type(error).__name__}: {error}"


@click.command(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, message="mpickpt %(version)s")
def app() -> None:
    """Look after checkpoints of MPI training runs.

    Exit codes: 0 well, 1 any other refusal (diff: different), 2 usage, 3 integrity, format or non-finite,
    4 contract, placement or schema, 5 epoch or moment, 6 store, not found or exists, 7 deadline or in doubt.
    """


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line `argv` (default: this process's own) and give its exit code."""
    return app.main(argv, standalone_mode=False)

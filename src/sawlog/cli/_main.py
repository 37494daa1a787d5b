"""``main``: parse, carry out, and turn what went wrong into a message and an exit code."""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import sawlog
from sawlog._text import printable_lines
from sawlog.cli._commands import COMMANDS, Arguments
from sawlog.cli._outcome import BAD, BROKEN_PIPE, INTERRUPTED, OK, report
from sawlog.errors import SawlogError

_DESCRIPTION = """\
Look into sawlog stores: logs of neural-network programs on disk, and what they say.

exit codes:
  0    all is well
  1    a store is damaged
  2    bad usage or input, or the disk refused; standard error says what
  130  interrupted
  141  whoever read the output went away

Colours and progress bars appear at a terminal only, and colours not if NO_COLOR is set.

sawlog COMMAND --help says more about a command, sawlog --version which sawlog this is.
"""


def main(args: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code.

    >>> main(["--version"])
    sawlog ...
    0
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # odd names must not end in a traceback
            stream.reconfigure(errors="backslashreplace")
    try:
        with _printable_warnings():
            code = _run(sys.argv[1:] if args is None else list(args))
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        _forget_output()
        return BROKEN_PIPE
    except (SawlogError, OSError) as error:
        return report(error)


def _run(args: list[str]) -> int:
    if args == ["--version"]:
        print(f"sawlog {sawlog.__version__}")
        return OK
    try:
        arguments = _parse(args)
    except SystemExit as stop:  # help was printed, or what is wrong with the arguments
        return stop.code if isinstance(stop.code, int) else BAD
    from sawlog.cli._screen import Screen

    name = next(name for name, kind in COMMANDS.items() if kind is type(arguments))
    module = importlib.import_module(f"sawlog.cli._{name.replace('-', '_')}")
    return int(module.run(arguments, Screen()))


def _parse(args: list[str]) -> Arguments:
    import tyro

    config = (tyro.conf.FlagCreatePairsOff,)
    with _without_colours(), _printable_output(args):
        if args and args[0] in COMMANDS:
            prog = f"sawlog {args[0]}"
            return tyro.cli(COMMANDS[args[0]], prog=prog, args=args[1:], config=config)
        # All that is left is to explain: here each command is told in one line.
        brief = {name: _briefly(kind) for name, kind in COMMANDS.items()}
        return tyro.extras.subcommand_cli_from_dict(
            brief, prog="sawlog", description=_DESCRIPTION, args=args, config=config
        )


def _briefly(kind: Callable[..., Arguments]) -> Callable[..., Arguments]:
    def brief() -> Arguments:
        return kind()

    brief.__doc__ = (kind.__doc__ or "").partition("\n")[0]
    return brief


@contextlib.contextmanager
def _without_colours() -> Iterator[None]:
    """Tyro asks standard output whether to use colours, and does not know NO_COLOR."""
    if not os.environ.get("NO_COLOR"):
        yield
        return
    plain = io.TextIOWrapper(io.BytesIO(), encoding=sys.stdout.encoding, write_through=True)
    try:
        with contextlib.redirect_stdout(plain):
            yield
    finally:
        plain.seek(0)
        print(plain.read(), end="")


@contextlib.contextmanager
def _printable_output(args: list[str]) -> Iterator[None]:
    """Tyro quotes arguments in its messages; among them may be names of files from anywhere."""
    if all(map(str.isprintable, args)):
        yield
        return
    out, err = io.StringIO(), io.StringIO()
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            yield
    finally:
        print(printable_lines(out.getvalue()), end="")
        print(printable_lines(err.getvalue()), end="", file=sys.stderr)


@contextlib.contextmanager
def _printable_warnings() -> Iterator[None]:
    """Warnings may quote names and paths too."""
    shown = warnings.showwarning

    def show(message: Any, category: Any, *where: Any, **more: Any) -> None:
        shown(printable_lines(str(message)), category, *where, **more)

    warnings.showwarning = show
    try:
        yield
    finally:
        warnings.showwarning = shown


def _forget_output() -> None:
    """Let the interpreter flush into nothing at its end, instead of complaining."""
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)

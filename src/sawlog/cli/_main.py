"""``main``: parse the arguments, run the command, and turn errors into messages and exit codes."""

from __future__ import annotations

import builtins
import contextlib
import io
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import sawlog
from sawlog._names import nearest
from sawlog._optional import require
from sawlog._text import printable_lines
from sawlog.cli._commands import COMMANDS
from sawlog.cli._exit_codes import BAD, BROKEN_PIPE, INTERRUPTED, OK, report
from sawlog.cli._usage import plain_numbers, usage_error
from sawlog.errors import ArgumentError, SawlogError

_DESCRIPTION = """\
Inspect sawlog stores, the logs of neural-network programs on disk, and score their examples.

exit codes:
  0    success
  1    a store is damaged
  2    bad usage or input, or an error of the disk; standard error has the message
  130  interrupted
  141  the reader of the output closed it

Colours and progress bars appear only in a terminal. NO_COLOR turns colours off.

sawlog COMMAND --help explains a command, sawlog --version prints the version.
"""


def main(args: Sequence[str] | None = None) -> int:
    """Run the command line, and return the exit code.

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
        _discard_output()
        return BROKEN_PIPE
    except (SawlogError, OSError) as error:
        return report(error)


def _run(args: list[str]) -> int:
    if args == ["--version"]:
        print(f"sawlog {sawlog.__version__}")
        return OK
    with _without_last_result():
        for package in ("tyro", "rich"):
            require(package, "cli", "The command sawlog")
    if args and args[0] not in COMMANDS and not args[0].startswith("-"):
        raise _unknown_command(args[0])
    try:
        arguments = _parse(args)
    except SystemExit as stop:  # tyro printed help, or what is wrong with the arguments
        return stop.code if isinstance(stop.code, int) else BAD
    from sawlog.cli._output import CommandOutput

    return int(COMMANDS[args[0]].load().run(arguments, CommandOutput()))


@contextlib.contextmanager
def _without_last_result() -> Iterator[None]:
    """Hide ``_``, the last result of an interactive session, from tyro.

    tyro hashes all builtins when it is imported, and a tuple with a list in it has no hash.
    """
    kept = {"_": builtins.__dict__.pop("_")} if "_" in builtins.__dict__ else {}
    try:
        yield
    finally:
        builtins.__dict__.update(kept)


def _unknown_command(typed: str) -> ArgumentError:
    close = nearest(typed, COMMANDS)
    meant = f"did you mean sawlog {close[0]}? " if close else ""
    return ArgumentError(
        f"There is no command {typed!r}. Hint: {meant}sawlog --help lists all commands."
    )


def _parse(args: list[str]) -> Any:
    import tyro

    config = (tyro.conf.FlagCreatePairsOff,)
    name = f"sawlog {args[0]}" if args and args[0] in COMMANDS else "sawlog"
    with _without_colours(), _printable_output(args, name):
        if args and args[0] in COMMANDS:
            kind = COMMANDS[args[0]].arguments_class()
            numbers = plain_numbers()
            return tyro.cli(kind, prog=name, args=args[1:], config=config, registry=numbers)
        # No command: print help with one line for each command.
        brief = {name: _placeholder(command.summary) for name, command in COMMANDS.items()}
        return tyro.extras.subcommand_cli_from_dict(
            brief, prog="sawlog", description=_DESCRIPTION, args=args, config=config
        )


def _placeholder(summary: str) -> Callable[[], None]:
    def command() -> None:
        return None

    command.__doc__ = summary
    return command


@contextlib.contextmanager
def _without_colours() -> Iterator[None]:
    """Hide the terminal from tyro if NO_COLOR is set, which tyro ignores."""
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
def _printable_output(args: list[str], command: str) -> Iterator[None]:
    """Escape what tyro prints, which quotes arguments; put errors into our own form."""
    odd = not all(map(str.isprintable, args))
    out, err = io.StringIO(), io.StringIO()
    try:
        with contextlib.ExitStack() as stack:
            stack.enter_context(contextlib.redirect_stderr(err))
            if odd:
                stack.enter_context(contextlib.redirect_stdout(out))
            yield
    finally:
        print(printable_lines(out.getvalue()), end="")
        print(printable_lines(usage_error(err.getvalue(), command)), end="", file=sys.stderr)


@contextlib.contextmanager
def _printable_warnings() -> Iterator[None]:
    """Escape warnings, which may quote names and paths."""
    shown = warnings.showwarning

    def show(message: Any, category: Any, *where: Any, **more: Any) -> None:
        shown(printable_lines(str(message)), category, *where, **more)

    warnings.showwarning = show
    try:
        yield
    finally:
        warnings.showwarning = shown


def _discard_output() -> None:
    """Replace standard output, so that the interpreter can flush it at exit."""
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)

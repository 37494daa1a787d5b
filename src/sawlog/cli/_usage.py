"""What is wrong with typed arguments, in the two lines of every other error."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from typing import Any

_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_SIMILAR = ("Perhaps you meant", "Arguments similar to")
_RULE = re.compile(r"[\s─╭╮╰╯\-]*")
_REWORDED: tuple[tuple[str, str | Callable[[re.Match[str]], str]], ...] = (
    (r"Error parsing (\S+): no type matching .* <class '\w+'>: (.*)", r"\1: \2"),
    (r"Error parsing (\S+): (.*)", r"\1: \2"),
    (
        r"invalid choice '(.*)' for argument '(.*?)'\. Expected one of \((.*?),?\)\.",
        r"\2: '\1' is not a choice. The choices are \3.",
    ),
    (r"Missing value for argument '(-.*?)'\. .*", r"\1 needs a value."),
    (r"Missing value for argument '(.*?)'\. .*", lambda found: f"{found[1].upper()} is missing."),
    (r"Missing from (sawlog \S+): ((?:-\S+ )?\S+) (.*?)\.? \(required\)", r"\1 needs \2: \3."),
    (r"Expected one of \{(.*)\}\.", r"A command is missing: \1."),
    (r"Unrecognized options: (.*)", r"These arguments are not known here: \1."),
)


def plain_numbers() -> Any:
    """Return a registry for tyro that says in words which values a number may have."""
    import tyro

    registry = tyro.constructors.ConstructorRegistry()
    _add(registry, int, "INT", "is not an integer, such as 10.")
    _add(registry, float, "FLOAT", "is not a number, such as 10, 0.1 or 1e-3.")
    return registry


def _add(registry: Any, kind: Callable[[str], Any], metavar: str, problem: str) -> None:
    import tyro

    def read(given: list[str]) -> Any:
        try:
            return kind(given[0])
        except ValueError:
            raise ValueError(f"{given[0]!r} {problem}") from None

    @registry.primitive_rule
    def rule(info: Any) -> Any:
        if info.type is not kind:
            return None
        return tyro.constructors.PrimitiveConstructorSpec(
            nargs=1,
            metavar=metavar,
            instance_from_str=read,
            is_instance=lambda each: isinstance(each, kind if kind is int else (int, float)),
            str_from_instance=lambda each: [str(each)],
        )


def usage_error(box: str, command: str) -> str:
    r"""Return tyro's box about wrong arguments as a line about the error, and a hint.

    Any other text is returned as it is.

    >>> box = "╭─ Value error ─╮\n│ Error parsing -n: 'x' is not a │\n│ number. │\n╰──╯\n"
    >>> print(usage_error(box, "sawlog tail"), end="")
    error: -n: 'x' is not a number.
    hint: sawlog tail --help explains all arguments, with examples.
    """
    lines = [line.strip(" │|") for line in _COLOURS.sub("", box).splitlines()]
    rules = [at for at, line in enumerate(lines) if _RULE.fullmatch(line) and line]
    said = [line for line in lines[1 : _second_rule(rules, len(lines))] if line]
    said = [line for line in said if not _RULE.fullmatch(line)]
    if not said or not rules:
        return box
    text = " ".join(said)
    for pattern, words in _REWORDED:
        text, found = re.subn(f"^{pattern}$", words, text)
        if found:
            break
    hint = "lists all commands" if command == "sawlog" else "explains all arguments, with examples"
    text = text.replace(" (required) ", "; ")
    close = [
        re.findall(r"--?[\w-]+", line)[-1]
        for head, line in itertools.pairwise(lines)
        if head.startswith(_SIMILAR) and line.startswith("-")
    ]
    meant = f"did you mean {' or '.join(close)}? " if close else ""
    return f"error: {text}\nhint: {meant}{command} --help {hint}.\n"


def _second_rule(rules: list[int], otherwise: int) -> int:
    """Return the line of the rule below the message; the first may be below the title."""
    return next((at for at in rules if at > 1), otherwise)

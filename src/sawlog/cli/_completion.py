"""``sawlog completion``: a script that completes commands, options and paths in a shell."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Callable
from typing import Annotated, Any, Literal

from tyro.conf import Positional, arg

from sawlog.cli._arguments import Json
from sawlog.cli._commands import COMMANDS
from sawlog.cli._exit_codes import OK
from sawlog.cli._output import CommandOutput

_POSITIONAL = typing.get_args(Positional[int])[1]


@dataclasses.dataclass(frozen=True)
class Completion:
    """Print a script that completes commands, options and paths in a shell.

    Put the line for your shell into its start-up file: ~/.bashrc or ~/.zshrc. For fish, write the
    script to ~/.config/fish/completions/sawlog.fish.

    examples:
      source <(sawlog completion bash)
      source <(sawlog completion zsh)
      sawlog completion fish > ~/.config/fish/completions/sawlog.fish
    """

    shell: Positional[
        Annotated[Literal["bash", "zsh", "fish"], arg(metavar="SHELL", help="bash, zsh or fish")]
    ]
    json: Json = False


def run(arguments: Completion, output: CommandOutput) -> int:
    """Run ``sawlog completion``."""
    script = _SCRIPTS[arguments.shell]({name: _options(name) for name in COMMANDS})
    if arguments.json:
        output.print_json({"shell": arguments.shell, "script": script})
    else:
        print(script, end="")
    return OK


@dataclasses.dataclass(frozen=True)
class _Option:
    """An option of a command, or its positional argument with choices, which has no flags."""

    flags: tuple[str, ...]
    choices: tuple[str, ...]
    takes_value: bool
    help: str


def _options(command: str) -> list[_Option]:
    """Return the options of a command, as its dataclass annotates them."""
    kind = COMMANDS[command].arguments_class()
    hints = typing.get_type_hints(kind, include_extras=True)
    listed = [_option(field.name, hints[field.name]) for field in dataclasses.fields(kind)]
    helps = _Option(("--help", "-h"), (), False, "Show this help")
    return [*(option for option in listed if option.flags or option.choices), helps]


def _option(name: str, hint: Any) -> _Option:
    plain, *notes = typing.get_args(hint)
    said = next((note for note in notes if hasattr(note, "aliases")), None)
    flags = (
        f"--{(said and said.name) or name}".replace("_", "-"),
        *((said and said.aliases) or ()),
    )
    choices = _choices(plain)
    text = " ".join(((said and said.help) or "").split())
    short = text.partition(". ")[0].rstrip(".")
    positional = any(note is _POSITIONAL for note in notes)
    return _Option(() if positional else flags, choices, plain is not bool, short)


def _choices(kind: Any) -> tuple[str, ...]:
    """Return the values of a ``Literal``, which may be in a union with None."""
    if typing.get_origin(kind) is Literal:
        return tuple(map(str, typing.get_args(kind)))
    parts = typing.get_args(kind) if type(None) in typing.get_args(kind) else ()
    return next((found for found in map(_choices, parts) if found), ())


Options = dict[str, list[_Option]]  # by command


def _bash(options: Options) -> str:
    flags, values = [], []
    for command, own in options.items():
        flags.append(f'        {command}) words="{" ".join(f for o in own for f in o.flags)}" ;;')
        for option in own:
            if option.choices:
                for flag in option.flags or ("",):
                    case = f'"{command} {flag}"' if flag else f'"{command} {command}"'
                    values.append(f'        {case}) words="{" ".join(option.choices)}" ;;')
    return _BASH.format(
        commands=" ".join(options), flags="\n".join(flags), values="\n".join(values)
    )


def _zsh(options: Options) -> str:
    return _ZSH + _bash(options)


def _fish(options: Options) -> str:
    lines = ["# Completion of sawlog for fish."]
    for command in options:
        summary = _quoted(COMMANDS[command].summary)
        lines.append(f"complete -c sawlog -f -n __fish_use_subcommand -a {command} -d {summary}")
    for command, own in options.items():
        seen = f"complete -c sawlog -n '__fish_seen_subcommand_from {command}'"
        for option in own:
            kinds = [("-l" if flag.startswith("--") else "-s", flag) for flag in option.flags]
            names = "".join(f" {kind} {flag.lstrip('-')}" for kind, flag in kinds)
            if option.choices:
                names += f" -x -a '{' '.join(option.choices)}'"
            elif option.takes_value:
                names += " -r"
            lines.append(f"{seen}{names} -d {_quoted(option.help)}")
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


_SCRIPTS: dict[str, Callable[[Options], str]] = {"bash": _bash, "zsh": _zsh, "fish": _fish}

_ZSH = """\
# zsh runs the functions of bash.
(( $+functions[compdef] )) || { autoload -U compinit && compinit }
autoload -U +X bashcompinit && bashcompinit
"""

# Where the script has nothing to offer, the shell completes paths, as for any other command.
_BASH = """\
# Completion of sawlog for bash.
_sawlog() {{
    local current="${{COMP_WORDS[COMP_CWORD]}}" previous="${{COMP_WORDS[COMP_CWORD-1]}}"
    local command="${{COMP_WORDS[1]}}" words=""
    if [[ $current == "=" ]]; then
        current=""
    elif [[ $previous == "=" ]]; then
        previous="${{COMP_WORDS[COMP_CWORD-2]}}"
    fi
    if (( COMP_CWORD == 1 )); then
        words="{commands} --help --version"
    elif [[ $current == -* ]]; then
        case "$command" in
{flags}
        esac
    else
        case "$command $previous" in
{values}
        esac
    fi
    COMPREPLY=()
    if [[ -n $words ]]; then
        COMPREPLY=($(compgen -W "$words" -- "$current"))
    fi
}}
complete -o default -o bashdefault -F _sawlog sawlog
"""

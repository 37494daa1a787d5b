"""Completion in a real bash; the scripts for zsh and fish by what they say."""

import shutil
import subprocess

import pytest

from sawlog.cli._commands import COMMANDS

TYPED = {
    ("sawlog", ""): {*COMMANDS, "--help", "--version"},
    ("sawlog", "self"): {"self-influence"},
    ("sawlog", "show", "--li"): {"--limit"},
    ("sawlog", "attribute", "a", "b", "--mode", ""): {"dot", "cosine", "l2"},
    ("sawlog", "attribute", "--mode", "=", "co"): {"cosine"},
    ("sawlog", "sync", "a", "--to", "="): {"wandb", "mlflow", "tensorboard", "trackio"},
    ("sawlog", "completion", ""): {"bash", "zsh", "fish"},
    ("sawlog", "show", ""): set(),  # the shell completes paths
    ("sawlog", "report", "a", "-o", ""): set(),
    ("sawlog", "nonsense", "--"): set(),
}


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
def test_in_bash(sawlog_):
    script = sawlog_("completion", "bash").out
    assert "complete -o default" in script
    for words in TYPED:
        script += f"COMP_WORDS=({' '.join(repr(word) for word in words)})\n"
        script += f'COMP_CWORD={len(words) - 1}; _sawlog; echo "${{COMPREPLY[*]}}"\n'
    done = subprocess.run(["bash", "--norc", "-eu"], input=script, capture_output=True, text=True)
    assert done.stderr == ""
    found = [set(line.split()) for line in done.stdout.splitlines()]
    assert dict(zip(TYPED, found, strict=True)) == TYPED


def test_the_scripts_of_other_shells(sawlog_):
    bash, zsh, fish = (sawlog_("completion", shell).out for shell in ("bash", "zsh", "fish"))
    assert zsh.endswith(bash)
    assert "bashcompinit" in zsh
    for command in COMMANDS:
        assert f"-a {command} -d '" in fish
    assert "-l mode -x -a 'dot cosine l2'" in fish
    assert "-l out -s o -r" in fish
    for line in fish.splitlines():
        assert line.startswith(("complete -c sawlog ", "#"))
        assert line.replace("\\'", "").count("'") % 2 == 0

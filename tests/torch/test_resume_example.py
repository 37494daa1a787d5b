"""The example of a program that is killed, in processes that need no import of torch."""

import importlib
from pathlib import Path
from types import SimpleNamespace

EXAMPLES = Path(__file__).parents[2] / "examples"
SCRIPT = f"""
import sys
sys.path.insert(0, {str(EXAMPLES)!r})
import resume_after_kill
resume_after_kill.main(sys.argv[1:])
"""


def test_a_killed_program_resumes(forks, monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    example = importlib.import_module("resume_after_kill")

    def run(command):
        fork = forks.start(SCRIPT, *command[2:])
        code = fork.wait(300)
        assert code in (0, -9), fork.output()
        print(fork.output())
        return SimpleNamespace(returncode=code)

    monkeypatch.setattr(example.subprocess, "run", run)
    assert example.main(["--examples", "70", "--batches", "2"]) == 1
    printed = capsys.readouterr().out
    assert "70 of 70 examples are missing" in printed
    assert "30 of 70 examples are missing" in printed
    assert "the same: True" in printed

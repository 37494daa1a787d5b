"""What holds for every command: examples in its help, JSON, exit codes, escaped names."""

import contextlib
import json
import re
import shlex
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import sawlog.store
from sawlog import influence
from sawlog.cli import _demo, _view
from sawlog.cli._commands import COMMANDS
from sawlog.cli._completion import _options
from sawlog.cli._main import _parse
from tests.cli.stores import make_run
from tests.influence import retraining

ODD = "a\x1b[31m\u202e<b>[red]{{7*7}}"


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """A folder with odd names everywhere: a store, a run with examples, queries, scores, a bank."""
    root = tmp_path_factory.mktemp("world") / ODD
    make_run(root / "store", steps=4)
    with sawlog.store.create(root / "store", exists="append") as writer:
        writer.log({ODD: 1.5}, step=3)
    rng = np.random.default_rng(0)
    for name, ids in (("run", [ODD, "b", "c", "d"]), ("asked", ["q", ODD])):
        with sawlog.store.create(root / name / "logs" / "whole", interval=None) as writer:
            writer.append(ids, {"grad/w": rng.normal(size=(len(ids), 3))})
        lines = [json.dumps({"id": each, "text": ODD}) for each in ids]
        (root / f"{name}.jsonl").write_text("\n".join(lines))
    queries, n = retraining.QUERIES, retraining.N
    scores = influence.Scores(queries, np.arange(n), retraining.influence(), about={"mode": "dot"})
    scores.save(root / "scores")
    influence.validate(scores, retraining.train, bank=root / "bank", subsets=5, seeds=1)
    return root


def calls(root: Path, new: Path) -> dict[str, tuple[list, list]]:
    """For each command, arguments that it takes, and arguments that name what does not exist."""
    store, run, asked, none = root / "store", root / "run", root / "asked", root / "none"
    sync = ["--to", "tensorboard", "--out", new / "events", "--state", new / "state"]
    return {
        "ls": ([root], [none]),
        "show": ([store], [none]),
        "tail": ([store, "--names", "loss", ODD], [none]),
        "plot": ([store, "--names", "loss"], [none]),
        "compare": ([store, store], [store, none]),
        "sync": ([store, *sync], [none, *sync]),
        "verify": ([store], [none]),
        "compact": ([store], [none]),
        "repair": ([store], [none]),
        "export": ([store, new / "a.csv", "--names", "loss"], [none, new / "b.csv"]),
        "describe": ([run, root / "run.jsonl"], [none, root / "run.jsonl"]),
        "report": ([store, "-o", new / "a.html"], [none, "-o", new / "b.html"]),
        "view": ([root, "--no-open"], [none, "--no-open"]),
        "attribute": ([run, asked, "--curvature", "fisher"], [run, none]),
        "self-influence": ([run, "--curvature", "fisher"], [none]),
        "validate": ([root / "scores", root / "bank", "--groups", -1], [none, root / "bank"]),
        "demo": (["--no-open", "-o", new / "demo"], ["-o", root]),
        "completion": (["bash"], ["tcsh"]),
    }


@pytest.fixture
def without_waiting(monkeypatch, world):
    """``view`` ends at once, and ``demo`` writes its page without a training."""

    def demo(folder, *_, **__):
        (folder / "report.html").touch()
        return folder / "report.html"

    def server(folder, port):
        bound = contextlib.nullcontext()
        made(folder, port)[1].close()
        return SimpleNamespace(run=lambda **_: None), bound, "http://127.0.0.1:1/token/"

    made = _view.make_server
    monkeypatch.setattr(_view, "make_server", server)
    monkeypatch.setattr(_demo, "run_demo", demo)


def test_the_table_has_every_command(world, tmp_path):
    assert list(calls(world, tmp_path)) == list(COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command(sawlog_, world, tmp_path, without_waiting, command):
    arguments, missing = calls(world, tmp_path)[command]
    done = sawlog_(command, *arguments)
    assert done.code == 0, done.err
    assert done.err == ""
    assert printed(done.out)
    made = [path for path in (tmp_path / "a.csv", tmp_path / "a.html") if path.exists()]
    for path in (*made, tmp_path / "demo" / "report.html"):
        path.unlink(missing_ok=True)
    done = sawlog_(command, *arguments, "--json")
    assert (done.code, done.err) == (0, "")
    lines = done.out.splitlines() if command == "tail" else [done.out]
    assert lines
    for line in lines:
        json.loads(line, parse_constant=lambda text: pytest.fail(f"{text} in JSON"))
    assert printed(done.out)

    done = sawlog_(command, *missing, "--json")
    assert done.code == 2
    assert done.out in ("", "[]\n")
    assert printed(done.err)
    assert "Traceback" not in done.err
    if command != "completion":  # whose mistake is one of usage, which tyro explains
        assert [line.partition(":")[0] for line in done.err.splitlines()] == ["error", "hint"]


@pytest.mark.parametrize(
    ("typed", "why"),
    [
        (["describe", "run", "empty.jsonl"], "has no examples"),
        (["describe", "run", "large.jsonl"], "integers of 64 bits"),
        (["report", "run", "-o", "p.html", "--data", "empty.jsonl"], "has no examples"),
        (["report", "run", "-o", "p.html", "--points", "1"], "at least 2"),
        (["report", "run", "-o", "p.html", "--queries", "asked"], "EK-FAC needs the covariances"),
        (["compact", "store", "--grace", "nan"], "--grace must be a non-negative number"),
        (["view", ".", "--port", "-1", "--no-open"], "Port -1 cannot be used"),
        (["tail", "run"], "no run with logs of steps"),
        (["demo", "-o", "store"], "is not empty"),
        (["plot", "store", "-o", "file/a.png"], "hint: check the path, and who may"),
        (["report", "store", "-o", "file/a.html"], "hint: check the path, and who may"),
        (["self-influence", "run", "--curvature", "fisher", "-o", "file/a.csv"], "hint: check the"),
        (["validate", "junk.npy", "bank"], "hint: np.save(path, scores) writes one."),
        (["lss", "."], "There is no command 'lss'.\nhint: did you mean sawlog ls?"),
        (["sho\x1bw"], r"There is no command 'sho\x1bw'."),
        (["report", "run", "-o", "p.pdf"], "-o must be an .html file; got 'p.pdf'"),
        (["report", "run", "-o", "p.html", "--query", "1"], "--query needs the run of the queries"),
        (["plot", "store", "--names", "nope"], "These runs have no curve of the name 'nope'."),
        (["compare", "store", "--names", "nope"], "These runs have no series of the name 'nope'."),
        (["tail", "store", "nope"], "This run has no curve of the name 'nope'."),
        (["attribute", "run", "asked", "--names", "nope"], "has no layer of the name 'nope'."),
        (["attribute", "run", "asked", "--damping", "-1"], "--damping must be a non-negative num"),
        (["attribute", "run", "asked", "--typical", "nan"], "--typical must be a non-negative num"),
        (["self-influence", "."], ". is not a run or store; some are below it."),
        (["validate", "scores", "bank", "--measure", "json:dumps"], "nothing is trained"),
    ],
)
def test_a_mistake(sawlog_, world, monkeypatch, typed, why):
    monkeypatch.chdir(world)
    Path("empty.jsonl").write_text("\n")
    Path("file").touch()
    Path("junk.npy").write_text("junk")
    Path("large.jsonl").write_text('{"id": 1000000000000000000000, "text": "a"}')
    done = sawlog_(*typed)
    assert (done.code, done.out) == (2, "")
    assert why in done.err
    assert done.err.startswith("error: ")


def printed(text: str) -> bool:
    """Whether nothing in a text could change what a terminal shows."""
    return text.replace("\n", "").isprintable()


@pytest.mark.parametrize("command", COMMANDS)
def test_the_examples_of_its_help_can_be_typed(sawlog_, command):
    text = sawlog_(command, "--help").out
    assert "examples:" in text
    shown = COMMANDS[command].arguments_class().__doc__.partition("examples:\n")[2].splitlines()
    lines = [line.strip() for line in shown if line.strip()]
    assert 1 < len(lines) < 4
    for line in lines:
        assert line.split()[-1] in text
        typed = re.fullmatch(r"(?:source <\()?(sawlog .*?)(?:\)| > .*)?", line)[1]
        name, *arguments = shlex.split(typed, comments=True)[1:]
        assert name == command
        assert _parse([command, *arguments]) is not None


def test_a_flag_has_the_same_short_form_everywhere():
    found: dict[str, set[tuple[str, ...]]] = {}
    for command in COMMANDS:
        for option in _options(command):
            for flag in option.flags:
                if flag.startswith("--"):
                    found.setdefault(flag, set()).add(tuple(sorted(option.flags)))
    assert {flag: forms for flag, forms in found.items() if len(forms) > 1} == {}
    assert {"--json", "--names", "--out", "--overwrite"} <= set(found)
    assert found["--out"] == {("--out", "-o")}
    assert found["--jobs"] == found["--workers"]
    everywhere = [c for c in COMMANDS if "--json" not in str(_options(c))]
    assert everywhere == []

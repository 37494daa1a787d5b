"""``report``, ``view``, ``describe``, ``tail``, ``plot`` and ``compare`` on the command line."""

import itertools
import json

import numpy as np
import pytest

import sawlog.store
from sawlog.example_data import load_examples
from sawlog.records import Entries, Records
from tests.cli.stores import a_second_entry_soon
from tests.report.runs import make_failed, make_seeds


@pytest.fixture
def seeds(tmp_path):
    make_seeds(tmp_path / "runs", seeds=2, steps=40)
    return tmp_path / "runs"


@pytest.fixture
def rows(tmp_path):
    """The folder of a run with three rows."""
    with sawlog.store.create(tmp_path / "run" / "logs" / "whole", interval=None) as writer:
        writer.append([7, 8, 9], {"grad/w": np.diag([3.0, 2.0, 1.0])})
    return tmp_path / "run"


def test_report_writes_one_file(sawlog_, seeds, tmp_path):
    out = tmp_path / "made" / "page.html"
    done = sawlog_("report", seeds, "-o", out, "--title", "<b>", "--json")
    assert (done.code, done.err) == (0, "")
    assert done.json == {"file": str(out), "bytes": out.stat().st_size}
    text = out.read_text()
    assert "<title>&lt;b&gt;</title>" in text
    assert 'data-name="index"' in text
    assert sawlog_("report", seeds, "-o", out).err.startswith(f"error: {out} exists.")
    assert sawlog_("report", seeds, "-o", out, "--overwrite").code == 0
    assert sawlog_("report", seeds, "-o", tmp_path).code == 2
    assert "does not exist" in sawlog_("report", tmp_path / "none").err
    assert "No run was given" in sawlog_("report").err


def test_report_with_data_and_queries(sawlog_, rows, tmp_path):
    data = tmp_path / "train.csv"
    data.write_text("id,text\n7,seven\n8,eight\n9,nine\n")
    out = tmp_path / "page.html"
    done = sawlog_("report", rows, "-o", out, "--data", data, "--queries", rows, "--query", "7")
    assert done.code == 2  # no K-FAC was measured, and the message says what to do
    assert "statistic" in done.err
    assert load_examples(rows).get([9])[9].text == "nine"
    assert sawlog_("report", rows, "-o", out).code == 0
    assert '"text":"seven"' in out.read_text()
    scores = tmp_path / "scores"
    sawlog_("attribute", rows, rows, "--curvature", "identity", "--out", scores, "--top", "0")
    assert sawlog_("report", rows, "-o", out, "--scores", scores, "--overwrite").code == 0
    assert '"method":"identity"' in out.read_text()
    assert sawlog_("report", rows, "--scores", rows / "logs" / "whole").code == 2


def test_describe_and_the_commands_that_show_it(sawlog_, rows, tmp_path):
    data = tmp_path / "train.jsonl"
    data.write_text("\n".join(json.dumps({"key": i, "body": f"text {i}"}) for i in (7, 8, 9)))
    done = sawlog_("describe", rows, data, "--ids", "key", "--text", "body", "--json")
    assert done.json == {"path": str(rows), "examples": 3}
    ranked = sawlog_("self-influence", rows, "--curvature", "identity", "--top", "1", "--json")
    assert ranked.json["ranking"][0]["text"].startswith("text 7")
    scored = sawlog_("attribute", rows, rows, "--curvature", "identity", "--query", "8")
    assert "text 8" in scored.out
    wrong = sawlog_("describe", rows, data, "--ids", "none")
    assert (wrong.code, "has no column 'none'" in wrong.err) == (2, True)
    assert "is not the folder of a run with examples" in sawlog_("describe", tmp_path, data).err


def test_ids_that_do_not_match_are_an_error(sawlog_, rows, tmp_path):
    (tmp_path / "a.txt").write_text("a\n")
    alone = sawlog_("describe", rows, tmp_path / "a.txt")
    assert "The example is not in the run: it has ids such as" in alone.err
    assert "(on the command line --ids)" in alone.err
    (tmp_path / "a.txt").write_text("a\nb\n")
    done = sawlog_("describe", rows, tmp_path / "a.txt")
    assert done.code == 2
    assert "None of the 2 described examples is in the run" in done.err


def test_tail_prints_the_last_steps(sawlog_, seeds):
    done = sawlog_("tail", seeds / "seed-0", "accuracy", "-n", "2", "--json")
    lines = [json.loads(line) for line in done.out.splitlines()]
    assert [line["steps"] for line in lines] == [{"step": 38}, {"step": 39}]
    assert lines[1]["values"] == {"accuracy": pytest.approx(1 - np.exp(-39 / 40))}
    done = sawlog_("tail", seeds / "seed-0", "--follow", "-n", "1")
    assert done.out.splitlines()[-1].startswith("step 39")
    assert done.err == "the run is closed\n"
    assert sawlog_("tail", seeds / "seed-0", "no_such").code == 2
    assert sawlog_("tail", seeds / "none").code == 2


def test_tail_prints_every_entry_of_a_step(sawlog_, tmp_path):
    """Minibatches of an update, and lanes of a ``vmap`` that logged, have lines of their own."""
    returns = Entries(
        np.array([[1.0, 2.0], [3.0, 4.0]]),
        {"update": np.array([[0, 0], [1, 1]])},
        np.array([[True, False], [True, True]]),
    )
    with sawlog.store.create(tmp_path / "run") as writer:
        writer.extend({"loss": np.arange(6.0)}, update=np.repeat([0, 1], 3))
        writer.write(Records({"return": returns}))
    done = sawlog_("tail", tmp_path / "run", "-n", "5", "--json")
    lines = [json.loads(line) for line in done.out.splitlines()]
    assert [line["steps"]["update"] for line in lines] == [0, 0, 1, 1, 1]
    assert [line["values"]["loss"] for line in lines] == [1, 2, 3, 4, 5]
    assert [line["values"].get("return") for line in lines] == [1, None, 3, 4, None]
    done = sawlog_("tail", tmp_path / "run", "return", "-n", "1")
    assert done.out == "update 1  return 4\n"


def test_tail_follows_a_writer(sawlog_, tmp_path, monkeypatch):
    monkeypatch.setattr("sawlog.cli._tail._EVERY", 0.01)
    with a_second_entry_soon(tmp_path / "run"):
        done = sawlog_("tail", tmp_path / "run", "--follow")
    assert done.out.split() == ["step", "0", "loss", "1", "step", "1", "loss", "0.5"]


def test_tail_has_names_of_other_steps_in_the_order_of_steps(sawlog_, tmp_path):
    with sawlog.store.create(tmp_path / "run") as writer:
        writer.extend({"loss": np.array([3.0, 2.0, 1.0])}, step=np.array([0, 2, 4]))
        writer.extend({"accuracy": np.array([0.1, 0.2, 0.3])}, step=np.array([1, 2, 3]))
    lines = sawlog_("tail", tmp_path / "run", "-n", "4").out.splitlines()
    assert [line.split()[1] for line in lines] == ["1", "2", "3", "4"]
    assert lines[1].split()[2:] == ["loss", "2", "accuracy", "0.2"]


def test_tail_leaves_out_what_was_not_logged(sawlog_, tmp_path):
    mask = np.array([True, False, True])
    entries = Entries(np.array([3.0, 2.0, 1.0]), {"step": np.array([0, 2, 4])}, mask)
    with sawlog.store.create(tmp_path / "run") as writer:
        writer.write({"loss": entries})
    done = sawlog_("tail", tmp_path / "run")
    assert done.out.split() == ["step", "0", "loss", "3", "step", "4", "loss", "1"]


def test_plot_in_the_terminal_and_to_files(sawlog_, seeds, tmp_path):
    done = sawlog_("plot", seeds, "--names", "loss", "accuracy", width=60)
    assert done.code == 0
    assert max(map(len, done.out.splitlines())) <= 60
    assert "seed-1" in done.out
    assert any("\u2801" <= c <= "\u28ff" for c in done.out)
    found = sawlog_("plot", seeds, "--names", "loss", "--axis", "epoch", "--json").json
    assert found["loss"]["seed-0"]["steps"][-1] == 1
    assert sawlog_("plot", seeds, "-o", tmp_path / "a.svg", "--log").code == 0
    assert (tmp_path / "a.svg").read_text().startswith("<?xml")
    assert sawlog_("plot", seeds, "-o", tmp_path / "a.svg").code == 2
    assert "must be a .png" in sawlog_("plot", seeds, "-o", tmp_path / "a.txt").err
    assert "no numbers over 'none'" in sawlog_("plot", seeds, "--axis", "none").err


def test_compare_shows_what_differs(sawlog_, seeds):
    make_failed(seeds)
    found = sawlog_("compare", seeds, "--json").json
    assert found["diverged"]["state"] == "failed"
    assert found["diverged"]["last"]["loss"] == "NaN"
    assert found["seed-1"]["config"]["lr"] == pytest.approx(0.2)
    shown = sawlog_("compare", seeds / "seed-0", seeds / "seed-1", "--names", "acc*").out
    assert [line.split()[0] for line in shown.splitlines() if line.startswith("lr")] == ["lr"]
    assert "model.width" not in shown
    assert "accuracy" in shown
    assert "loss" not in shown


def test_view_refuses_what_is_no_folder(sawlog_, tmp_path):
    done = sawlog_("view", tmp_path / "none", "--no-open")
    assert (done.code, "does not exist" in done.err) == (2, True)
    done = sawlog_("view", tmp_path, "--no-open", "--port", "99999")
    assert (done.code, "cannot be used" in done.err) == (2, True)


def test_a_curve_that_jumps_has_no_gaps(sawlog_, tmp_path):
    with sawlog.store.create(tmp_path / "run") as writer:
        writer.extend({"loss": np.array([0.0, 0.0, 1.0, 1.0])}, step=np.arange(4))
    done = sawlog_("plot", tmp_path / "run", width=60)
    lines = [line[11:] for line in done.out.splitlines()[1:13]]
    assert len(lines) == 12
    assert all(line.strip() for line in lines)
    columns = [[at for at, mark in enumerate(line) if mark != " "] for line in lines]
    for above, below in itertools.pairwise(columns):
        assert min(abs(one - other) for one in above for other in below) <= 1
    assert max(columns[-1]) < min(columns[0]) + 1  # from the left below to the right above

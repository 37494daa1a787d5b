"""``sawlog sync``: everything arrives once, in order, also after an interruption."""

import contextlib
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import sawlog.store
from sawlog.cli import _sync
from sawlog.cli._output import CommandOutput
from sawlog.sinks import MemorySink
from tests.cli.stores import a_second_entry_soon
from tests.sinks._trackers import TensorBoard


@pytest.fixture
def run_(tmp_path):
    with sawlog.store.create(tmp_path / "run", meta={"config": {"lr": 0.1}}) as writer:
        writer.extend({"loss": np.arange(5.0), "accuracy": np.arange(5.0) / 5}, step=np.arange(5))
        writer.log({"once": 7})
    return tmp_path / "run"


class Trackers:
    """Memory sinks in place of a tracker, one for each time that it is opened."""

    def __init__(self, monkeypatch, fails_at: int = -1):
        self.opened, self.written, self.fails_at = [], 0, fails_at
        monkeypatch.setattr(_sync, "_open_sink", self)
        monkeypatch.setattr(_sync, "_PIECE", 2)

    def __call__(self, arguments, name, config, store, state):
        sink = MemorySink()
        write = sink.write

        def counted(records):
            self.written += 1
            if self.written == self.fails_at:
                raise OSError(28, "the tracker is full")
            write(records)

        sink.write = counted
        self.opened.append((name, config, sink))
        return sink

    def values(self, name):
        found = [s.records[name] for _, _, s in self.opened if name in s.records]
        return [value for entries in found for value in entries.values.tolist()]


def sync(sawlog_, run, tmp_path, *more):
    return sawlog_("sync", run, "--to", "wandb", "--state", tmp_path / "state", "--json", *more)


def test_everything_is_sent_once(sawlog_, run_, tmp_path, monkeypatch):
    trackers = Trackers(monkeypatch)
    assert sync(sawlog_, run_, tmp_path).json == [{"run": "run", "sent": 11, "before": 0}]
    assert sync(sawlog_, run_, tmp_path).json == [{"run": "run", "sent": 0, "before": 11}]
    with sawlog.store.open(run_, "append") as writer:
        writer.log({"loss": 9.0, "accuracy": 1.0}, step=5)
        writer.log({"once": 8})
    assert sync(sawlog_, run_, tmp_path).json == [{"run": "run", "sent": 3, "before": 11}]
    assert [(name, config) for name, config, _ in trackers.opened] == [("run", {"lr": 0.1})] * 2
    assert trackers.values("loss") == [0, 1, 2, 3, 4, 9]
    assert trackers.values("once") == [7, 8]
    last = trackers.opened[1][2].records["once"]
    assert last.steps["entry"].tolist() == [1]
    other = sync(sawlog_, run_, tmp_path, "--project", "other").json
    assert other == [{"run": "run", "sent": 14, "before": 0}]


def test_what_a_tracker_prints_is_not_the_result(sawlog_, run_, tmp_path, monkeypatch):
    trackers = Trackers(monkeypatch)

    def talking(*given):
        print("* created a run")
        return trackers(*given)

    monkeypatch.setattr(_sync, "_open_sink", talking)
    done = sync(sawlog_, run_, tmp_path)
    assert done.json == [{"run": "run", "sent": 11, "before": 0}]
    assert "* created a run" in done.err


def test_an_interrupted_upload_goes_on(sawlog_, run_, tmp_path, monkeypatch):
    trackers = Trackers(monkeypatch, fails_at=2)
    done = sync(sawlog_, run_, tmp_path)
    assert (done.code, "the tracker is full" in done.err) == (2, True)
    assert sync(sawlog_, run_, tmp_path).json == [{"run": "run", "sent": 6, "before": 5}]
    assert trackers.values("loss") == [0, 1, 2, 3, 4]
    assert trackers.values("accuracy") == [0, 0.2, 0.4, 0.6, 0.8]


class OfTracker(Exception):
    """An error as trackers have them: it cannot be unpickled."""

    def __init__(self, one, two):
        super().__init__(f"{one}\n{two}")


@pytest.mark.parametrize("place", ["open", "write", "close"])
def test_an_error_of_a_tracker_is_one_line(sawlog_, run_, tmp_path, monkeypatch, place):
    trackers = Trackers(monkeypatch)

    def refusing(*_):
        raise OfTracker("no such project.", "and much more")

    def opened(*given):
        sink = refusing() if place == "open" else trackers(*given)
        setattr(sink, place, refusing)
        return sink

    monkeypatch.setattr(_sync, "_open_sink", opened)
    done = sync(sawlog_, run_, tmp_path)
    assert (done.code, done.out) == (2, "")
    assert done.err.splitlines() == [
        "error: wandb failed at run run: OfTracker: no such project.",
        "hint: what was sent is remembered, so the same command continues where it stopped.",
    ]


def test_following_keeps_one_run_open(sawlog_, tmp_path, monkeypatch):
    trackers = Trackers(monkeypatch)
    monkeypatch.setattr(_sync, "_EVERY", 0.01)
    with a_second_entry_soon(tmp_path / "run"):
        done = sync(sawlog_, tmp_path / "run", tmp_path, "--follow")
    assert done.json == [{"run": "run", "sent": 2, "before": 0}]
    assert trackers.values("loss") == [1.0, 0.5]
    assert len(trackers.opened) == 1


def test_progress_counts_the_pieces_of_all_runs(sawlog_, run_, tmp_path, monkeypatch):
    Trackers(monkeypatch)
    seen, doing = [], []

    @contextlib.contextmanager
    def recorded(_, text):
        doing.append(text)
        yield lambda done, total: seen.append((done, total))

    monkeypatch.setattr(CommandOutput, "progress", recorded)
    with sawlog.store.create(tmp_path / "more" / "run") as writer:
        writer.extend({"loss": np.arange(6.0)}, step=np.arange(6))
    options = ("--to", "wandb", "--state", tmp_path / "state")
    assert sawlog_("sync", run_, tmp_path / "more" / "run", *options).code == 0
    assert doing == ["sending to wandb"]
    assert seen == [(1, 6), (2, 6), (3, 6), (4, 6), (5, 6), (6, 6)]
    seen.clear()
    assert sawlog_("sync", run_, *options, "--follow").code == 0
    assert seen == []


def test_tensorboard_reads_what_was_sent(sawlog_, run_, tmp_path):
    options = ("--to", "tensorboard", "--out", tmp_path / "board", "--state", tmp_path / "state")
    for steps in (5, 6):
        assert sawlog_("sync", run_, *options).code == 0
        seen = TensorBoard(tmp_path).read(SimpleNamespace(path=str(tmp_path / "board" / "run")))
        assert [step for step, _ in seen.scalars["loss"]] == list(range(steps))
        with sawlog.store.open(run_, "append") as writer:
            writer.log({"loss": 0.25, "accuracy": 1.0}, step=5)


def test_a_run_is_sent_once_however_it_is_given(sawlog_, tmp_path):
    runs = tmp_path / "runs"
    for seed in range(2):
        with sawlog.store.create(runs / f"seed-{seed}") as writer:
            writer.extend({"loss": np.arange(5.0)}, step=np.arange(5))
    options = ("--to", "tensorboard", "--out", tmp_path / "board", "--state", tmp_path / "state")
    sent = [
        [each["sent"] for each in sawlog_("sync", *given, *options, "--json").json]
        for given in ([runs], [runs / "seed-0"], [runs / "seed-1", runs / "seed-0"])
    ]
    assert sent == [[5, 5], [0], [0, 0]]
    seen = TensorBoard(tmp_path).read(SimpleNamespace(path=str(tmp_path / "board" / "seed-0")))
    assert [step for step, _ in seen.scalars["loss"]] == list(range(5))
    # With another name it is another folder of the board, which is complete by itself.
    (named,) = sawlog_("sync", tmp_path, *options, "--json").json[:1]
    assert (named["run"], named["sent"]) == ("runs/seed-0", 5)


def test_the_project_is_the_folder_that_holds_the_runs(sawlog_, tmp_path, monkeypatch):
    trackers = Trackers(monkeypatch)
    projects = []

    def opened(arguments, name, *given):
        projects.append((arguments.project, name))
        return trackers(arguments, name, *given)

    monkeypatch.setattr(_sync, "_open_sink", opened)
    runs = tmp_path / "all" / "ppo"
    for seed in range(2):
        with sawlog.store.create(runs / f"seed-{seed}") as writer:
            writer.log({"loss": 1.0}, step=0)

    def first_sent(folder, *given):
        monkeypatch.chdir(folder)
        done = sawlog_("sync", *given, "--to", "wandb", "--state", tmp_path / "state")
        assert done.code == 0, done.err
        found, projects[:] = sorted(projects), []
        return found

    both = [("ppo", "seed-0"), ("ppo", "seed-1")]
    assert first_sent(tmp_path, runs) == both
    # The same runs of the same project: whatever is given, nothing is sent again.
    assert first_sent(tmp_path, runs / "seed-0") == []
    assert first_sent(tmp_path / "all", "ppo/seed-1", "ppo/seed-0") == []
    assert first_sent(runs, ".") == []
    assert first_sent(runs / "seed-0", ".") == []
    assert first_sent(runs / "seed-0", "..") == []
    # The folder above holds these runs under other names: another project.
    above = [("all", f"ppo/seed-{seed}") for seed in range(2)]
    assert first_sent(runs, "..") == above
    assert first_sent(runs, ".", "--project", "mine") == [("mine", name) for _, name in both]
    assert _sync._project(Path("/")) == "sawlog"


@pytest.mark.thorough
@pytest.mark.filterwarnings("default")  # MLflow's own, of its database
def test_processes_do_not_create_a_new_database_at_once(sawlog_, tmp_path, monkeypatch):
    """MLflow fails, and may leave half of its tables, where two processes create them."""
    from mlflow import MlflowClient

    monkeypatch.setenv("MLFLOW_TRACKING_URI", address := f"sqlite:///{tmp_path / 'mlflow.db'}")
    for seed in range(2):
        with sawlog.store.create(tmp_path / "runs" / f"seed-{seed}") as writer:
            writer.extend({"loss": np.arange(5.0)}, step=np.arange(5))
    options = ("--to", "mlflow", "--jobs", "2", "--state", tmp_path / "state", "--json")
    done = sawlog_("sync", tmp_path / "runs", *options)
    assert done.code == 0, done.err
    assert done.json == [{"run": f"seed-{seed}", "sent": 5, "before": 0} for seed in range(2)]
    client = MlflowClient(address)
    (found,) = [e for e in client.search_experiments() if e.name == "runs"]
    for run in client.search_runs([found.experiment_id]):
        history = client.get_metric_history(run.info.run_id, "loss")
        assert sorted(metric.step for metric in history) == [0, 1, 2, 3, 4]


def test_bad_usage(sawlog_, run_, tmp_path):
    done = sawlog_("sync", run_, "--to", "tensorboard")
    assert (done.code, "Hint" in done.err or "hint" in done.err) == (2, True)
    assert sawlog_("sync", run_, "--to", "nowhere").code == 2
    for tracker in ("wandb", "mlflow", "trackio"):
        done = sawlog_("sync", run_, "--to", tracker, "--out", tmp_path / "board")
        assert (done.code, f"--to {tracker} does not use --out" in done.err) == (2, True)
    board = ("--to", "tensorboard", "--out")
    done = sawlog_("sync", run_, *board, tmp_path / "board", "--project", "mine")
    assert (done.code, "does not use --project" in done.err) == (2, True)
    (tmp_path / "file").touch()
    done = sawlog_("sync", run_, *board, tmp_path / "file")
    assert (done.code, "file is a file" in done.err) == (2, True)
    assert sawlog_("sync", run_, "--to", "wandb", "--jobs", "0").code == 2
    (tmp_path / "state").mkdir()
    with sawlog.store.open(run_) as reader:
        state = _sync.SyncState(tmp_path / "state", reader.id, f"wandb\0{tmp_path.name}\0")
    state.path.write_text("[]")
    done = sync(sawlog_, run_, tmp_path)
    assert (done.code, "does not say what was sent" in done.err) == (2, True)

"""What commands do, piece by piece: what is sent and remembered, compared, and meant."""

import contextlib
import dataclasses
import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import sawlog.store
from sawlog.cli import _attribute, _compare, _report, _sync, _tail, main
from sawlog.cli._folders import one_store
from sawlog.cli._scoring import damping_of, score_cell
from sawlog.cli._sync import Sync
from sawlog.cli._sync_state import SyncState, default_folder
from sawlog.curvature import Relative, Typical
from sawlog.errors import ArgumentError, StoreNotFoundError
from sawlog.influence import Scores
from sawlog.records import Entries
from sawlog.sinks import MemorySink
from tests.cli.stores import make_run


def test_a_part_has_its_own_steps_and_mask():
    mask = np.array([True, True, False, True, True])
    entries = Entries(np.arange(5.0), {"step": np.arange(10, 15)}, mask, {"a": 1})
    part = _sync._part(entries, 2, 4)
    assert part.values.tolist() == [2.0, 3.0]
    assert part.steps["step"].tolist() == [12, 13]
    assert part.mask.tolist() == [False, True]
    assert part.attrs == {"a": 1}
    assert _sync._part(Entries(np.arange(5.0)), 2, 4).steps["entry"].tolist() == [2, 3]


class Noted(MemorySink):
    """Notes what is done with it."""

    def __init__(self, done):
        super().__init__()
        self.done = done

    def _write(self, records):
        self.done.append("write")
        super()._write(records)

    def _flush(self):
        self.done.append("flush")

    def fail(self):
        self.done.append("fail")


def arguments(tmp_path, **options):
    return Sync(runs=(tmp_path,), to="wandb", project="p", state=tmp_path / "state", **options)


@pytest.fixture
def done(monkeypatch):
    """Let every run be a store at its path, and send it to a sink that notes what is done."""
    found = []
    monkeypatch.setattr(_sync, "_PIECE", 2)
    monkeypatch.setattr(_sync, "_open_sink", lambda *_: Noted(found))
    monkeypatch.setattr(
        _sync, "run_summary", lambda path: SimpleNamespace(series_path=path, config={})
    )
    save = SyncState.save
    monkeypatch.setattr(SyncState, "save", lambda self: (found.append("save"), save(self)))
    return found


def write(path, count, failed=False):
    with sawlog.store.create(path, exists="append", interval=None) as writer:
        for step in range(count):
            writer.log({"x": float(step)}, step=step)
        if failed:
            writer.fail()


def test_a_piece_is_remembered_once_it_is_safe(tmp_path, done):
    write(tmp_path / "s", 3)
    sent, goes_on = _sync._sync_one(arguments(tmp_path), "s", tmp_path / "s", _sync._OpenSinks())
    assert done == ["write", "flush", "save"] * 2
    assert (dataclasses.astuple(sent), goes_on) == (("s", 3, 0), False)


@pytest.mark.parametrize("failed", [False, True])
def test_a_run_that_failed_fails_in_the_tracker(tmp_path, done, failed):
    write(tmp_path / "s", 1, failed)
    _sync._sync_one(arguments(tmp_path), "s", tmp_path / "s", _sync._OpenSinks())
    assert ("fail" in done) is failed


def test_each_destination_remembers_by_itself(tmp_path):
    base = arguments(tmp_path)
    board = dataclasses.replace(base, to="tensorboard", out=tmp_path / "out")
    others = [
        dataclasses.replace(base, project="q"),
        dataclasses.replace(base, to="mlflow"),
        board,
        dataclasses.replace(board, out=tmp_path / "other"),
    ]
    every = {_sync._destination(each, "run") for each in (base, *others)}
    assert len(every) == 5
    paths = {SyncState(tmp_path, store, each).path for store in ("a", "b") for each in every}
    assert len(paths) == 10


@pytest.mark.parametrize(
    ("tracker", "by_name"), [("wandb", 1), ("mlflow", 1), ("trackio", 2), ("tensorboard", 2)]
)
def test_the_name_counts_where_the_tracker_knows_runs_by_it(tmp_path, tracker, by_name):
    own = dataclasses.replace(arguments(tmp_path), to=tracker, out=tmp_path)
    assert len({_sync._destination(own, name) for name in ("seed-0", "runs/seed-0")}) == by_name
    other = dataclasses.replace(own, project="another")
    assert (_sync._destination(own, "a") == _sync._destination(other, "a")) is (
        tracker == "tensorboard"
    )


def test_what_is_sent_while_a_run_goes_on_is_added_up(tmp_path, monkeypatch):
    rounds = {"a": [(3, True), (2, True), (0, False)], "b": [(5, False)]}
    monkeypatch.setattr(_sync, "_EVERY", 0.0)

    def one(arguments, name, path, sinks, progress):
        sent, goes_on = rounds[name].pop(0)
        return _sync._Sent(name, sent, 7 if name == "a" else 0), goes_on

    monkeypatch.setattr(_sync, "_sync_one", one)
    runs = [("a", Path("a")), ("b", Path("b"))]
    found = _sync._sync_all(arguments(tmp_path, follow=True), runs)
    assert list(map(dataclasses.astuple, found)) == [("a", 5, 7), ("b", 5, 0)]


@pytest.mark.parametrize("follow", [False, True])
def test_progress_needs_a_total(tmp_path, monkeypatch, follow):
    """Nobody knows how much a run that goes on will log."""
    make_run(tmp_path / "run")
    seen = []

    def all_(arguments, runs, progress=None):
        seen.append(progress)
        return []

    @contextlib.contextmanager
    def shown(what):
        yield lambda done, total: None

    monkeypatch.setattr(_sync, "_sync_all", all_)
    output = SimpleNamespace(progress=shown, print_json=lambda found: None)
    given = arguments(tmp_path / "run", json=True, follow=follow)
    assert _sync.run(given, output) == 0
    assert [each is None for each in seen] == [follow]


def test_tensorboard_gets_the_settings_once(tmp_path, monkeypatch):
    given = []
    monkeypatch.setattr(_sync, "TensorBoardSink", lambda path, config: given.append((path, config)))
    to = dataclasses.replace(arguments(tmp_path), to="tensorboard", out=tmp_path / "tb")
    for sent in ({}, {"x": 1}):
        state = SimpleNamespace(sent=sent)
        _sync._open_sink(to, "run", {"lr": 0.1}, "id", state)
    assert given == [(tmp_path / "tb" / "run", {"lr": 0.1}), (tmp_path / "tb" / "run", {})]


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({}, None),
        ({"damping": 0.5}, 0.5),
        ({"relative": 0.5}, Relative(0.5)),
        ({"typical": 0.5}, Typical(0.5)),
        ({"typical": 0.0}, Typical(0.0)),
    ],
)
def test_which_damping_is_meant(options, wanted):
    given = SimpleNamespace(**{"damping": None, "relative": None, "typical": None, **options})
    assert damping_of(given) == wanted
    assert type(damping_of(given)) is type(wanted)
    if options:
        other = "damping" if "damping" not in options else "typical"
        with pytest.raises(ArgumentError, match="exclude each other"):
            damping_of(SimpleNamespace(**{**vars(given), other: 1.0}))


def test_settings_that_one_run_lacks_differ():
    runs = [
        SimpleNamespace(config={"lr": 0.1, "same": 1, "own": 2}),
        SimpleNamespace(config={"lr": 0.2, "same": 1}),
    ]
    assert _compare._varied(runs) == ["lr", "own"]
    assert _compare._varied(runs[:1]) == ["lr", "same", "own"]


def test_names_that_are_compared(tmp_path, capsys):
    run = str(make_run(tmp_path / "run"))
    for options, names in (
        ([], {"loss"}),
        (["--names", "lo*"], {"loss"}),
        (["--names", "nothing"], None),
    ):
        code = main(["compare", run, "--json", *options])
        said = capsys.readouterr().out
        if names is None:
            assert code != 0
        else:
            (found,) = json.loads(said).values()
            assert set(found["last"]) == names


def test_settings_of_any_run_count():
    """Also those that the first run does not have."""
    runs = [
        SimpleNamespace(config={"same": 1}),
        SimpleNamespace(config={"same": 1}),
        SimpleNamespace(config={"same": 1, "own": 2}),
    ]
    assert _compare._varied(runs) == ["own"]
    assert _compare._varied(runs[:2]) == []


@pytest.mark.parametrize("damaged", [[], [0], [1], [0, 1]])
def test_a_damaged_run_is_told_by_the_exit_code(tmp_path, monkeypatch, capsys, damaged):
    monkeypatch.setattr(_compare, "run_summary", lambda path: summary_of(path, damaged))
    monkeypatch.setattr(_compare, "_last_values", lambda summary: {"loss": 1.0})
    for number in range(2):
        make_run(tmp_path / f"run-{number}")
    for options in ([], ["--json"]):
        code = main(["compare", *(str(tmp_path / f"run-{n}") for n in range(2)), *options])
        assert code == (1 if damaged else 0)
        assert "loss" in capsys.readouterr().out


def summary_of(path, damaged):
    state = "damaged" if int(path.name[-1]) in damaged else "closed"
    return SimpleNamespace(path=path, state=state, config={}, series_path=path, problem=None)


@pytest.mark.parametrize(
    ("value", "coloured", "style"),
    [(2.0, True, "green"), (-2.0, True, "red"), (0.0, True, ""), (2.0, False, "")],
)
def test_colours_of_scores(value, coloured, style):
    found = score_cell(value, coloured)
    assert found.style == style
    assert float(found.plain) == value


@pytest.mark.parametrize(("mode", "styles"), [("dot", ["green", "red"]), ("l2", ["", ""])])
def test_distances_have_no_colours(mode, styles):
    scores = Scores(
        np.array(["q"]), np.array([[1, 2]]), np.array([[2.0, -1.0]]), about={"mode": mode}
    )
    assert [row[3].style for row in _attribute._cells(scores, {})] == styles


class Opened:
    """In place of a tracker's sink: what it was opened with."""

    run_id = "fresh"

    def __init__(self, *args, **options):
        self.args, self.options = args, options


def test_a_run_of_a_tracker_is_continued(tmp_path, monkeypatch):
    """By the id that MLflow gave, or by that of the store, which other stores do not have."""
    for name in ("MLflowSink", "TrackioSink", "WandbSink"):
        monkeypatch.setattr(_sync, name, Opened)
    store = "0123456789abcdef" * 3

    def opened(to, state):
        base = dataclasses.replace(arguments(tmp_path), to=to)
        return _sync._open_sink(base, "run", {"lr": 1}, store, state)

    state = SyncState(tmp_path / "state", store, "there")
    found = opened("mlflow", state)
    assert (found.args, found.options) == (
        ("p",),
        {"name": "run", "config": {"lr": 1}, "run_id": None},
    )
    again = SyncState(tmp_path / "state", store, "there")
    assert (again.run_id, again.sent) == ("fresh", {})
    assert opened("mlflow", again).options["run_id"] == "fresh"
    for to, more in (("trackio", {}), ("wandb", {"id": store[:32]})):
        found = opened(to, state)
        assert found.args == ("p", "run")
        assert found.options == {"config": {"lr": 1}, "resume": "allow", **more}


@pytest.mark.parametrize("given", [None, "here"])
def test_where_it_is_remembered_what_was_sent(tmp_path, monkeypatch, given):
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    base = tmp_path / ".local" / "state"
    if given is not None:
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / given))
        base = tmp_path / given
    assert default_folder() == base / "sawlog" / "sync"


@pytest.mark.parametrize(("runs", "jobs"), [(5, 2), (3, 3), (7, 3), (4, 9)])
def test_runs_are_divided_among_processes(tmp_path, monkeypatch, capsys, runs, jobs):
    """Each run is sent by one of them, also those that are left over."""
    shares = []

    def in_processes(arguments, found, progress):
        shares.extend(found)
        return []

    monkeypatch.setattr(_sync, "_in_processes", in_processes)
    monkeypatch.setattr(_sync, "_prepare", lambda tracker: None)
    for number in range(runs):
        make_run(tmp_path / f"run-{number}")
    given = [str(tmp_path / f"run-{number}") for number in range(runs)]
    options = ["--to", "wandb", "--jobs", str(jobs), "--state", str(tmp_path / "state")]
    assert main(["sync", *given, *options]) == 0
    capsys.readouterr()
    assert len(shares) == min(runs, jobs)
    assert sorted(path.name for share in shares for _, path in share) == [
        f"run-{number}" for number in range(runs)
    ]


def test_examples_and_queries_of_a_report_are_described(tmp_path, monkeypatch, capsys):
    """Each with the run that they belong to, before anything is scored."""
    done = []
    monkeypatch.setattr(_report, "_describe", lambda folder, data: done.append((folder, data)))
    monkeypatch.setattr(_report, "_scored", lambda arguments, run: done.append(run))
    monkeypatch.setattr(_report, "write_report", lambda runs, out, **_: out.write_text("a page"))
    runs = [tmp_path / name for name in ("train", "test")]
    options = ["--data", "a.csv", "--query-data", "b.csv", "-o", str(tmp_path / "page.html")]
    assert main(["report", str(runs[0]), "--queries", str(runs[1]), *options]) == 0
    assert done == [(runs[0], Path("a.csv")), (runs[1], Path("b.csv")), runs[1]]
    capsys.readouterr()


@pytest.mark.parametrize("names", [["scores", "logs"], ["a", "metrics", "b"], ["b", "a"]])
def test_what_people_ask_for_most_is_listed_first(tmp_path, names):
    for name in names:
        sawlog.store.create(tmp_path / name / "own").close()
    first = next((name for name in names if name in ("logs", "metrics")), min(names))
    with pytest.raises(StoreNotFoundError) as caught:
        one_store(tmp_path)
    listed = str(caught.value).partition("in it: ")[2]
    assert listed.startswith(f"{first}/own, ")
    assert f"such as {tmp_path / first / 'own'};" in listed
    assert one_store(tmp_path / first) == tmp_path / first / "own"


def test_notes_of_a_run_are_not_sent(tmp_path, done):
    with sawlog.store.create(tmp_path / "s") as writer:
        writer.log({"provenance": np.zeros(3, np.uint8), "x": 1.0}, step=0)
    sinks = _sync._OpenSinks()
    sent, _ = _sync._sync_one(arguments(tmp_path), "s", tmp_path / "s", sinks)
    assert sent.sent == 1
    assert list(sinks.by_name["s"].logs) == ["x"]


def test_entries_without_steps_are_numbered_from_the_first(tmp_path):
    """Also those that are logged while the run is followed."""
    seen, found = {}, []
    with sawlog.store.create(tmp_path / "s", interval=None) as writer:
        for part in ([1.0, 2.0], [3.0], [4.0, 5.0]):
            writer.extend({"x": np.array(part)})
            writer.flush()
            with sawlog.store.open(tmp_path / "s") as reader:
                found.append(list(_tail._new_lines(reader, (), seen, None)))
    assert [[(at["entry"], values["x"]) for at, values in each] for each in found] == [
        [(0, 1.0), (1, 2.0)],
        [(2, 3.0)],
        [(3, 4.0), (4, 5.0)],
    ]
    with sawlog.store.open(tmp_path / "s") as reader:
        last = list(_tail._new_lines(reader, (), {}, 2))
    assert [values["x"] for _, values in last] == [4.0, 5.0]

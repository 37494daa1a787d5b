"""``sawlog attribute`` and ``sawlog self-influence``, against the functions they call."""

import csv
import json

import numpy as np
import pytest

import sawlog.store
from sawlog import influence
from sawlog.errors import ArgumentError
from tests.cli.stores import cut, segments
from tests.cli.test_main import at_terminal
from tests.influence.stores import written

RNG = np.random.default_rng(0)
TRAIN = {"a": RNG.normal(size=(9, 3, 2)), "b": RNG.normal(size=(9, 4))}
QUERIES = {"a": RNG.normal(size=(3, 3, 2)), "b": RNG.normal(size=(3, 4))}


@pytest.fixture
def stores(tmp_path):
    """Rows of examples in three files, and those of queries with texts as ids."""
    written(tmp_path / "train", TRAIN, np.arange(10, 19), each=3)
    written(tmp_path / "queries", QUERIES, ["x", "y", "z"])
    return tmp_path / "train", tmp_path / "queries"


def said(done):
    """``{query: [(id, score), ...]}`` of the JSON of a command."""
    assert (done.code, done.err) == (0, "")
    return {
        each["query"]: [(e["id"], e["score"]) for e in each["examples"]]
        for each in done.json["results"]
    }


def expected(scores):
    return {query: scores[query] for query in scores.queries.tolist()}


def assert_alike(found, wanted):
    assert list(found) == list(wanted)
    for query, pairs in wanted.items():
        assert [each for each, _ in found[query]] == [each for each, _ in pairs]
        np.testing.assert_allclose([v for _, v in found[query]], [v for _, v in pairs])


def test_the_best_of_each_query(sawlog_, stores):
    done = sawlog_("attribute", *stores, "--curvature", "fisher", "--json", "--top", 4)
    scores = influence.attribute(*stores, curvature="fisher", top_k=4)
    assert said(done) == expected(scores)
    assert done.json["examples"] == 9
    assert done.json["damping"] == pytest.approx(scores.about["damping"])
    assert [e["rank"] for e in done.json["results"][0]["examples"]] == [1, 2, 3, 4]
    done = sawlog_("attribute", *stores, "--curvature", "fisher", "--top", 2)
    lines = [line.split() for line in done.out.splitlines()]
    assert lines[0][0] == str(stores[0])
    assert lines[2] == ["query", "rank", "id", "score"]
    assert [line[0] for line in lines[3::2]] == ["x", "y", "z"]
    assert [line[-2] for line in lines[3:5]] == [str(scores.ids[0, i]) for i in range(2)]
    assert "note" not in done.err


@pytest.mark.parametrize(
    ("typed", "options"),
    [
        (["--damping", "0.5"], {"damping": 0.5}),
        (["--relative", "0.2"], {"damping": sawlog.curvature.Relative(0.2)}),
        (["--typical", "0.2"], {"damping": sawlog.curvature.Typical(0.2)}),
        (["--mode", "cosine", "--sign", "absolute"], {"mode": "cosine", "sign": "absolute"}),
        (["--mode", "l2", "--budget", "1kB"], {"mode": "l2"}),
        (["--sign", "negative", "--names", "a"], {"sign": "negative", "names": ["a"]}),
    ],
)
def test_options_are_those_of_the_function(sawlog_, stores, typed, options):
    done = sawlog_("attribute", *stores, "--curvature", "diagonal", *typed, "--json")
    options = {"curvature": "diagonal", "top_k": 10, **options}
    assert_alike(said(done), expected(influence.attribute(*stores, **options)))


def test_some_queries_in_any_order(sawlog_, stores):
    done = sawlog_("attribute", *stores, "--curvature=identity", "--json", "--query", "z", "x")
    every = influence.attribute(*stores, curvature="identity", top_k=9)
    assert_alike(said(done), {"z": every["z"], "x": every["x"]})
    train, _ = stores
    found = said(sawlog_("attribute", train, train, "--curvature=identity", "--json", "--query=12"))
    assert list(found) == [12]


def test_each_layer(sawlog_, stores):
    typed = ("attribute", *stores, "--curvature=identity", "--per-layer", "--top=1")
    (best,) = sawlog_(*typed, "--json").json["results"][0]["examples"]
    assert set(best["layers"]) == {"a", "b"}
    assert sum(best["layers"].values()) == pytest.approx(best["score"])
    assert "layers" in sawlog_(*typed).out


# -- files ----------------------------------------------------------------------------------------


def test_scores_are_saved(sawlog_, stores, tmp_path):
    typed = ("attribute", *stores, "--curvature=identity", "--top=0", "--out")
    scores = influence.attribute(*stores, curvature="identity")
    assert sawlog_(*typed, tmp_path / "new" / "scores").code == 0
    saved = influence.load_scores(tmp_path / "new" / "scores")
    assert saved.whole
    assert np.array_equal(saved.values, scores.values)
    done = sawlog_(*typed, tmp_path / "scores.csv")
    assert f"saved to {tmp_path / 'scores.csv'}" in done.out
    with (tmp_path / "scores.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 27
    assert [float(row["score"]) for row in rows[:9]] == sorted(scores.values[0], reverse=True)
    assert [row["rank"] for row in rows[:9]] == [str(i) for i in range(1, 10)]
    parquet = pytest.importorskip("pyarrow.parquet")
    assert sawlog_(*typed, tmp_path / "scores.parquet", "--per-layer").code == 0
    columns = parquet.read_table(tmp_path / "scores.parquet").to_pydict()
    assert list(columns) == ["query", "rank", "id", "score", "a", "b"]
    assert columns["id"] == [int(row["id"]) for row in rows]
    assert not list(tmp_path.glob(".*"))


def test_nothing_is_replaced_unasked(sawlog_, stores, tmp_path):
    typed = ("attribute", *stores, "--curvature=identity", "--out")
    for name in ("scores", "scores.csv"):
        assert sawlog_(*typed, tmp_path / name).code == 0
        done = sawlog_(*typed, tmp_path / name)
        assert (done.code, done.out) == (2, "")
        assert "--overwrite" in done.err
        assert sawlog_(*typed, tmp_path / name, "--overwrite").code == 0
    before = sorted(stores[0].rglob("*"))
    for target in (stores[0], tmp_path):
        done = sawlog_(*typed, target, "--overwrite")
        assert (done.code, done.out) == (2, "")
        assert "not a folder of scores" in done.err
    assert sorted(stores[0].rglob("*")) == before


TEXTS = {
    "lines.jsonl": "\n".join(json.dumps({"id": i, "text": f"text {i}"}) for i in range(10, 19)),
    "table.csv": "text,id\n" + "\n".join(f'"text {i}",{i}' for i in range(18, 9, -1)),
    "plain.txt": "\n".join(f"text {i}" for i in range(19)),
    "texts.jsonl": "\n".join(json.dumps(f"text {i}") for i in range(19)),
}


@pytest.mark.parametrize("name", TEXTS)
def test_texts(sawlog_, stores, tmp_path, name):
    (tmp_path / name).write_text(TEXTS[name] + "\n")
    typed = ("attribute", *stores, "--curvature=identity", "--text", tmp_path / name)
    done = sawlog_(*typed, "--json")
    assert (done.code, done.err) == (0, "")
    for each in done.json["results"][0]["examples"]:
        assert each["text"] == f"text {each['id']}"
    assert sawlog_(*typed).out.count("text 1") == 27


def test_texts_that_are_not_there_and_odd_ones(sawlog_, stores, tmp_path):
    odd = json.dumps({"id": "11", "text": "a\x1b[31m\n" + "b" * 300})
    (tmp_path / "t.jsonl").write_text(odd)
    done = sawlog_(
        "self-influence", stores[0], "--curvature=identity", "--text", tmp_path / "t.jsonl"
    )
    assert done.code == 0
    assert "has no text of 8 of the 9 examples" in done.err
    assert "\x1b" not in done.out
    assert r"a\x1b[31m b" in done.out
    assert "b" * 200 not in done.out


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        ("t.jsonl", '{"id": 1, "text": "a"}\n{"id"', "example 1"),
        ("t.jsonl", '{"id": 1, "words": "a"}', "fields are: id, words"),
        ("t.csv", "id,words\n1,a\n", "no field 'text'"),
        ("none.txt", None, "does not exist"),
        ("t.parquet", "no table", "cannot be read as Parquet"),
        ("t.jsonl", "[" * 100_000, "not a file of JSON lines"),
        ("t.xlsx", "PK", "unknown suffix"),
    ],
)
def test_files_that_are_no_texts(sawlog_, stores, tmp_path, name, text, why):
    if text is not None:
        (tmp_path / name).write_text(text)
    done = sawlog_("attribute", *stores, "--curvature=identity", "--text", tmp_path / name)
    assert (done.code, done.out) == (2, "")
    assert why in done.err
    assert str(tmp_path / name) in done.err


# -- folders of runs ------------------------------------------------------------------------------


def run_of(path, kinds, compress=None):
    """The folder of a run as torch leaves it, with rows of several kinds."""
    for kind in kinds:
        meta = {"options": {"compress": compress}, "blocks": []}
        with sawlog.store.create(path / "logs" / kind, meta=meta) as writer:
            writer.append([0, 1], {"grad/w": np.eye(2)})
    return path


def test_a_run_stands_for_its_rows(sawlog_, tmp_path):
    train = run_of(tmp_path / "train", ["whole-float32", "whole-int8"])
    queries = run_of(tmp_path / "queries", ["whole-int8"])
    typed = ("--curvature=identity", "--json")
    done = sawlog_("attribute", train, queries, *typed)
    assert (done.code, done.err) == (0, "")
    assert done.json["train"] == str(train / "logs" / "whole-int8")
    assert sawlog_("attribute", train / "logs" / "whole-float32", queries, *typed).code == 0
    for args in (("attribute", train, train), ("self-influence", train)):
        done = sawlog_(*args, *typed)
        assert (done.code, done.out) == (2, "")
        assert "whole-float32, whole-int8" in done.err
        assert str(train / "logs" / "whole-float32") in done.err.splitlines()[-1]
    assert sawlog_("self-influence", queries, *typed).code == 0


def test_compressed_in_different_ways(sawlog_, tmp_path):
    how = {"kind": "orthonormal", "rank": 1, "bytes": None, "seed": 0}
    train, queries = run_of(tmp_path / "a", ["x"], how), run_of(tmp_path / "b", ["x"])
    done = sawlog_("attribute", train, queries, "--curvature=identity", "--query=1")
    assert (done.code, done.out) == (2, "")
    assert "same compression" in done.err


# -- what goes wrong ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("typed", "why"),
    [
        (["--top", "-1"], "--top"),
        (["--damping", "1", "--relative", "1"], "--damping and --relative"),
        (["--budget", "much"], "2GB"),
        (["--budget", "0"], "--budget"),
        (["--names", "c"], "'c'"),
        (["--query", "w"], "'w'"),
        (["--workers", "-1"], "--workers"),
        (["--mode", "l2", "--per-layer"], "sums over layers"),
        (["--curvature", "ekfac"], "kfac"),
        (["--curvature", "hessian"], "hessian"),
    ],
)
def test_bad_input_is_2_and_says_why(sawlog_, stores, typed, why):
    kind = [] if "--curvature" in typed else ["--curvature=identity"]
    done = sawlog_("attribute", *stores, *kind, *typed)
    assert (done.code, done.out) == (2, "")
    assert why in done.err
    assert "Traceback" not in done.err


def test_no_rows(sawlog_, stores, tmp_path):
    train, queries = stores
    (tmp_path / "run" / "statistics").mkdir(parents=True)
    (tmp_path / "file").write_text("")
    for path, why in (
        (tmp_path / "none", "does not exist"),
        (tmp_path / "run", "no rows of examples"),
    ):
        for pair in ((path, queries), (train, path)):
            done = sawlog_("attribute", *pair)
            assert (done.code, done.out) == (2, "")
            assert why in done.err
            assert str(path) in done.err
    assert "a file" in sawlog_("self-influence", tmp_path / "file").err
    assert sawlog_("attribute", train, train, "--query", "x").code == 2
    done = sawlog_("self-influence", train, "--out", tmp_path / "x")
    assert (done.code, ".csv" in done.err) == (2, True)


def test_damage_is_1(sawlog_, stores):
    cut(segments(stores[0])[0])
    done = sawlog_("attribute", *stores, "--curvature=identity")
    assert (done.code, done.out) == (1, "")
    assert segments(stores[0])[0].name in done.err


# -- self-influence -------------------------------------------------------------------------------


def test_self_influence(sawlog_, stores, tmp_path):
    train, _ = stores
    ranking = influence.self_influence(train, curvature="fisher", names=["b"])
    typed = ("self-influence", train, "--curvature=fisher", "--names", "b", "--top", 3)
    done = sawlog_(*typed, "--json", "--out", tmp_path / "all.csv")
    assert (done.code, done.err) == (0, "")
    assert [(e["id"], e["value"]) for e in done.json["ranking"]] == ranking.top(3)
    assert done.json["examples"] == 9
    with (tmp_path / "all.csv").open() as file:
        rows = [(int(row["id"]), float(row["value"])) for row in csv.DictReader(file)]
    assert rows == ranking.top(9)
    done = sawlog_(*typed, "--least")
    ids = [line.split()[1] for line in done.out.splitlines()[3:]]
    assert ids == [str(each) for each, _ in ranking.top(3, least=True)]


# -- processes and terminals ----------------------------------------------------------------------


def test_workers_and_a_checkpoint(sawlog_, stores, tmp_path):
    typed = ("attribute", *stores, "--curvature=identity", "--json", "--top=5")
    alone = sawlog_(*typed)
    done = sawlog_(*typed, "--workers", 1, "--checkpoint", tmp_path / "parts")
    assert_alike(said(done), said(alone))
    assert list((tmp_path / "parts").glob("*/*"))
    again = sawlog_(*typed, "--checkpoint", tmp_path / "parts")
    assert_alike(said(again), said(alone))


def test_a_terminal_sees_progress_and_colours(stores):
    code, shown = at_terminal("attribute", *stores, "--curvature", "identity")
    assert code == 0
    assert "scoring" in shown
    assert "\x1b[32m" in shown
    assert "\x1b[31m" in shown


def test_narrow_screens(sawlog_, stores):
    for width in (20, 40):
        done = sawlog_("attribute", *stores, "--curvature=identity", "--per-layer", width=width)
        assert done.code == 0
        assert max(map(len, done.out.splitlines())) <= width


def test_sizes():
    from sawlog._validate import byte_size

    assert [byte_size("", text) for text in ("1", "2 kb", "1MiB", "0.5g")] == [
        1,
        2000,
        1 << 20,
        500_000_000,
    ]
    for text in ("", "1.2.3", "-1", "GB", "1 EB", "nan"):
        with pytest.raises(ArgumentError):
            byte_size("--budget", text)

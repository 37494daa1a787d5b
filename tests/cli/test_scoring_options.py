"""Every option of the commands that score: in every output, and as the function gets it."""

import contextlib
import csv

import numpy as np
import pytest

from sawlog import influence
from sawlog.cli import _attribute, _self_influence
from sawlog.curvature import Relative, Typical
from tests.cli.test_attribute import QUERIES, TRAIN
from tests.influence.stores import written


@pytest.fixture
def stores(tmp_path):
    """Layers whose shares in a score have both signs; ids that are not in order."""
    written(tmp_path / "train", TRAIN, [14, 12, 18, 11, 16, 10, 17, 15, 13], each=4)
    written(tmp_path / "queries", QUERIES, ["y", "z", "x"])
    return tmp_path / "train", tmp_path / "queries"


# -- as the function gets them --------------------------------------------------------------------

SHARED = [
    (["--curvature", "fisher"], {"curvature": "fisher"}),
    (["--damping", "0.25"], {"damping": 0.25}),
    (["--relative", "0.25"], {"damping": Relative(0.25)}),
    (["--typical", "0.25"], {"damping": Typical(0.25)}),
    ([], {"damping": None, "curvature": "diagonal", "weights": "same", "nonfinite": "error"}),
    (["--names", "b"], {"names": ["b"]}),
    (["--names", "b", "a"], {"names": ["a", "b"]}),
    (["--budget", "2MiB"], {"budget": 2 << 20}),
    (["--weights", "any"], {"weights": "any"}),
    (["--nonfinite", "keep"], {"nonfinite": "keep"}),
]
ATTRIBUTE = [
    (["--mode", "cosine"], {"mode": "cosine"}),
    (["--sign", "negative"], {"sign": "negative"}),
    (["--top", "4"], {"top_k": 4}),
    (["--top", "0"], {"top_k": None}),
    (["--per-layer"], {"per_layer": True}),
    (["--checkpoint", "{0}/parts"], {"checkpoint": "{0}/parts"}),
    ([], {"mode": "dot", "sign": "positive", "top_k": 10, "per_layer": False}),
]


def called(monkeypatch, module, name):
    """What the command calls the function with."""
    seen, plain = [], getattr(influence, name)

    def spy(*args, **options):
        seen.append(options)
        return plain(*args, **options)

    monkeypatch.setattr(module.influence, name, spy)
    return seen


@pytest.mark.parametrize(("typed", "options"), SHARED + ATTRIBUTE)
def test_options_of_attribute(sawlog_, stores, tmp_path, monkeypatch, typed, options):
    seen = called(monkeypatch, _attribute, "attribute")
    typed = [each.format(tmp_path) for each in typed]
    done = sawlog_("attribute", *stores, "--json", *_with_curvature(typed))
    assert (done.code, done.err) == (0, "")
    for name, value in options.items():
        found = str(seen[0][name]) if name == "checkpoint" else seen[0][name]
        assert found == (value.format(tmp_path) if name == "checkpoint" else value)


@pytest.mark.parametrize(("typed", "options"), SHARED)
def test_options_of_self_influence(sawlog_, stores, monkeypatch, typed, options):
    seen = called(monkeypatch, _self_influence, "self_influence")
    done = sawlog_("self-influence", stores[0], "--json", *_with_curvature(typed))
    assert (done.code, done.err) == (0, "")
    assert {name: seen[0][name] for name in options} == options


def _with_curvature(typed):
    return typed if "--curvature" in typed else [*typed, "--curvature", "diagonal"]


# -- in every output ------------------------------------------------------------------------------


def read(path):
    with path.open() as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("sign", ["positive", "negative", "absolute"])
@pytest.mark.parametrize("top", [0, 4])
def test_the_order_is_the_same_everywhere(sawlog_, stores, tmp_path, sign, top):
    typed = ("attribute", *stores, "--curvature=identity", "--per-layer", "--top", top)
    typed = (*typed, "--sign", sign, "--query", "z", "y")
    scores = influence.attribute(*stores, curvature="identity", per_layer=True).select(["z", "y"])
    best = scores.top(top or 9, sign)
    expected = [
        (query, rank + 1, best.ids[i, rank], best.values[i, rank], best.layers["a"][i, rank])
        for i, query in enumerate(("z", "y"))
        for rank in range(top or 9)
    ]
    done = sawlog_(*typed, "--json", "--out", tmp_path / "best.csv")
    assert (done.code, done.err) == (0, "")
    in_json = [
        (each["query"], e["rank"], e["id"], e["score"], e["layers"]["a"])
        for each in done.json["results"]
        for e in each["examples"]
    ]
    in_sheet = [
        (row["query"], int(row["rank"]), int(row["id"]), float(row["score"]), float(row["a"]))
        for row in read(tmp_path / "best.csv")
    ]
    for found in (in_json, in_sheet):
        assert [each[:3] for each in found] == [each[:3] for each in expected]
        np.testing.assert_allclose([e[3:] for e in found], [e[3:] for e in expected], rtol=1e-9)
    assert done.json["sign"] == sign
    shown = sawlog_(*typed, width=200).out.splitlines()[3:]
    assert [line.split()[-6] for line in shown] == [str(each[2]) for each in expected]
    sawlog_(*typed, "--out", tmp_path / "folder")
    saved = influence.load_scores(tmp_path / "folder")
    if top:
        assert saved.ids.tolist() == best.ids.tolist()
    else:
        assert saved.ids.tolist() == scores.ids.tolist()  # whole, as the store has them
        np.testing.assert_allclose(saved.values, scores.values, rtol=1e-9)


@pytest.mark.parametrize("least", [False, True])
@pytest.mark.parametrize("top", [0, 3])
def test_rankings_are_the_same_everywhere(sawlog_, stores, tmp_path, least, top):
    """The screen and JSON have the first, the file has all of them, in the same order."""
    train, _ = stores
    (tmp_path / "texts.csv").write_text("id,text\n" + "".join(f"{i},t{i}\n" for i in range(20)))
    typed = ["self-influence", train, "--curvature=diagonal", "--top", top]
    typed += ["--text", tmp_path / "texts.csv", *(["--least"] if least else [])]
    ranking = influence.self_influence(train, curvature="diagonal")
    every = ranking.top(9, least=least)
    first = every[: top or 9]
    done = sawlog_(*typed, "--json", "--out", tmp_path / "all.csv")
    assert (done.code, done.err) == (0, "")
    assert done.json["least"] == least
    assert [(e["rank"], e["id"], e["value"], e["text"]) for e in done.json["ranking"]] == [
        (rank, each, value, f"t{each}") for rank, (each, value) in enumerate(first, 1)
    ]
    assert [
        (int(r["rank"]), int(r["id"]), float(r["value"]), r["text"])
        for r in read(tmp_path / "all.csv")
    ] == [(rank, each, value, f"t{each}") for rank, (each, value) in enumerate(every, 1)]
    shown = [line.split()[:2] for line in sawlog_(*typed, width=100).out.splitlines()]
    shown = shown[shown.index(["rank", "id"]) + 1 :]
    assert shown == [[str(r), str(i)] for r, (i, _) in enumerate(first, 1)]


def test_layers_are_shown_by_their_share_whatever_its_sign(sawlog_, tmp_path):
    rows = {
        name: np.array([[value]]) for name, value in zip("abcde", (1, -9, 3, 0.5, 4), strict=True)
    }
    written(tmp_path / "logs", rows, [1])
    written(tmp_path / "queries", {name: np.ones((1, 1)) for name in rows}, [1])
    typed = ("attribute", tmp_path / "logs", tmp_path / "queries", "--curvature=identity")
    assert "b -9, e 4, c 3, ..." in sawlog_(*typed, "--per-layer", width=200).out


def test_examples_whose_scores_are_not_finite_are_kept_if_asked(sawlog_, tmp_path):
    written(tmp_path / "logs", {"w": np.array([[1.0], [np.nan], [2.0]])}, [1, 2, 3])
    written(tmp_path / "queries", {"w": np.ones((1, 1))}, [1])
    for typed in (
        ("attribute", tmp_path / "logs", tmp_path / "queries"),
        ("self-influence", tmp_path / "logs"),
    ):
        assert sawlog_(*typed, "--curvature=identity").code == 2
        assert sawlog_(*typed, "--curvature=identity", "--nonfinite=keep").code == 0


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_as_many_processes_as_were_asked_for(sawlog_, stores, monkeypatch, workers):
    made, given, plain = [], [], influence.attribute

    class Pool(contextlib.nullcontext):
        def __init__(self, count, mp_context):
            super().__init__("pool")
            made.append((count, mp_context.get_start_method()))

    def spy(*args, **options):
        given.append(options.pop("executor"))
        return plain(*args, **options)

    monkeypatch.setattr(_attribute, "ProcessPoolExecutor", Pool)
    monkeypatch.setattr(_attribute.influence, "attribute", spy)
    typed = ("attribute", *stores, "--curvature=identity", "--workers", workers, "--json")
    assert sawlog_(*typed).code == 0
    assert made == ([(workers, "spawn")] if workers else [])
    assert given == ["pool" if workers else None]

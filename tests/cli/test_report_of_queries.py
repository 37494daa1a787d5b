"""``sawlog report --queries``: all scores of the page are of the options that were typed."""

import numpy as np
import pytest
import torch

import sawlog
from sawlog import influence
from sawlog.cli import _report
from sawlog.report._source import PageOptions

N = 9


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Examples and queries of a model of tokens, with both factors and K-FAC."""
    root = tmp_path_factory.mktemp("runs")
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2))
    x = torch.randn(N + 3, 5, 3)
    for name, ids in (("train", range(N)), ("queries", range(N, N + 3))):
        run = sawlog.init(project=name, root=root)
        run.setup(log=["forward", "backward", "grad"], statistic="kfac")
        run.watch(model, quiet=True)
        with run(data_id=list(ids)):
            (model(x[list(ids)]) ** 2).sum((1, 2)).mean().backward()
        run.close()
    return root / "train", root / "queries"


@pytest.fixture
def pages(monkeypatch):
    """What pages would be written with."""
    seen = []

    def written(runs, out, *, options, scores, progress):
        seen.append((runs, options, scores))
        out.write_text("a page")

    monkeypatch.setattr(_report, "write_report", written)
    return seen


@pytest.mark.parametrize(
    ("typed", "changed"),
    [
        ([], {}),
        (["--title", "Mine"], {"title": "Mine"}),
        (["--points", 7], {"points": 7}),
        (["--no-labels"], {"labels": False}),
    ],
)
def test_options_of_report(sawlog_, runs, tmp_path, pages, typed, changed):
    done = sawlog_("report", *runs, *typed, "-o", tmp_path / "page.html")
    assert (done.code, done.err) == (0, "")
    ((given, options, scores),) = pages
    assert (given, scores) == (runs, [])
    assert options == PageOptions(**{"title": "train", "points": None, "labels": True, **changed})


def test_scores_that_are_saved_and_those_of_queries(sawlog_, runs, tmp_path, pages):
    for name in ("one", "two"):
        influence.Scores(np.array([9]), np.arange(N), np.ones((1, N))).save(tmp_path / name)
    saved = [tmp_path / "two", tmp_path / "one"]
    options = ("--queries", runs[1], "--curvature", "identity", "-o", tmp_path / "page.html")
    assert sawlog_("report", runs[0], "--scores", *saved, *options).code == 0
    ((_, _, scores),) = pages
    assert scores[:2] == saved
    assert scores[2].title == "train, queries of queries"
    assert scores[2].scores.queries.tolist() == [9, 10, 11]
    assert scores[2].scores.about["curvature"] == "identity"
    assert list(scores[2].scores.layers) == ["0.weight", "2.weight"]


@pytest.mark.parametrize(
    ("curvature", "most"), [("identity", 4), ("diagonal", 50), ("kfac", 4), ("ekfac", 50)]
)
def test_scores_of_tokens_sum_to_those_of_the_page(
    sawlog_, runs, tmp_path, pages, monkeypatch, curvature, most
):
    monkeypatch.setattr(_report, "_MOST_TOKENS", most)
    options = ("--queries", runs[1], "--query", 11, 9, "--curvature", curvature)
    done = sawlog_("report", runs[0], *options, "-o", tmp_path / "page.html", "--json")
    assert (done.code, done.err) == (0, "")
    ((_, _, (scored,)),) = pages
    rows = [run / "logs" / "whole-float32" for run in runs]
    wanted = influence.attribute(*rows, curvature=curvature).select([11, 9])
    assert scored.scores.queries.tolist() == [11, 9]
    np.testing.assert_allclose(scored.scores.values, wanted.values, rtol=1e-6)
    assert list(scored.tokens) == [11, 9]
    for query, own in scored.tokens.items():
        listed = dict(wanted[query])
        ranked = sorted(listed, key=lambda each: -listed[each])
        half = most // 2
        assert own.keys() == {*ranked[:half], *ranked[-half:]}
        for each, values in own.items():
            assert len(values) == 5
            assert sum(values) == pytest.approx(listed[each], rel=1e-5)

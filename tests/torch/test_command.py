"""The command line on the folders that runs leave behind."""

import numpy as np

import sawlog
from sawlog import influence
from tests.cli.conftest import sawlog_ as sawlog_
from tests.torch.programs import mlp
from tests.torch.test_run import go


def logged(root, project, batch, **options):
    """A run of its own over some examples."""
    program = mlp(size=12)
    run = sawlog.init(project=project, root=root)
    run.setup(statistic="kfac", **options)
    run.watch(program.model, quiet=True)
    go(run, program, batch=program.part(batch))
    run.finalize()
    return run


def test_runs_are_scored_by_their_folders(sawlog_, tmp_path):
    train = logged(tmp_path, "train", slice(12), compress=2)
    queries = logged(tmp_path, "queries", slice(3, 6), compress=2)
    done = sawlog_("attribute", train.path, queries.path, "--json", "--top", 4)
    assert (done.code, done.err) == (0, "")
    scores = influence.attribute(train.store_path, queries.store_path, top_k=4)
    found = [[each["id"] for each in one["examples"]] for one in done.json["results"]]
    assert found == scores.ids.tolist()
    assert done.json["queries"] == str(queries.store_path)
    done = sawlog_("self-influence", train.path, "--json")
    assert [each["id"] for each in done.json["ranking"]] == [
        each for each, _ in influence.label_errors(train.store_path).top(20)
    ]


def test_main_directions_are_those_of_one_run(sawlog_, tmp_path):
    how = {"kind": "pca", "rank": 2}
    for project, batch in (("train", slice(12)), ("queries", slice(3, 9))):
        logged(tmp_path, project, batch, save=[])
        logged(tmp_path, project, batch, compress=how)
    typed = ("--curvature", "identity", "--json")
    done = sawlog_("attribute", tmp_path / "train", tmp_path / "queries", *typed)
    assert (done.code, done.out) == (2, "")
    assert "different covariances" in done.err
    done = sawlog_("attribute", tmp_path / "train", tmp_path / "train", *typed, "--query", "3", "4")
    assert (done.code, done.err) == (0, "")
    (logs,) = (tmp_path / "train" / "logs").iterdir()
    every = influence.attribute(logs, logs, curvature="identity")
    values = [[each["score"] for each in one["examples"]] for one in done.json["results"]]
    np.testing.assert_allclose(values, -np.sort(-every.values[3:5])[:, :10], rtol=1e-5)
    best = done.json["results"][0]["examples"][0]["id"]
    assert best == every.ids[np.argmax(every.values[3])]

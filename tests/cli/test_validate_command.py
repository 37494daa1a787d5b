"""``sawlog validate``, against the function it calls."""

import dataclasses
import sys

import numpy as np
import pytest

from sawlog import influence
from sawlog.cli import _validate
from tests.influence import retraining
from tests.influence.retraining import QUERIES, N

TRAIN = "tests.influence.retraining:train"


@pytest.fixture
def saved(tmp_path):
    about = {"mode": "dot", "curvature": "exact"}
    scores = influence.Scores(QUERIES, np.arange(N), retraining.influence(), about=about)
    scores.save(tmp_path / "scores")
    return tmp_path / "scores", tmp_path / "bank"


def test_models_are_trained_and_the_result_is_saved(sawlog_, saved):
    options = ("--train", TRAIN, "--subsets", 8, "--seeds", 2, "--groups", 1, "--share", 0.1)
    done = sawlog_("validate", *saved, *options, "--save", "--json")
    assert (done.code, done.err) == (0, "")
    loaded = influence.load_scores(saved[0])
    wanted = influence.validate(
        loaded, retraining.train, subsets=8, seeds=2, groups=1, share=0.1
    ).validation
    assert loaded.validation == wanted
    assert done.json["lds"] == wanted.lds
    assert [each["query"] for each in done.json["queries"]] == QUERIES.tolist()
    assert [each["name"] for each in done.json["groups"]] == [g.name for g in wanted.groups]
    done = sawlog_("validate", *saved, "--groups", 1, "--share", 0.1)
    lines = done.out.splitlines()
    assert lines[0] == f"{saved[0]}  {wanted}"
    assert lines[2].split() == [
        "left",
        "out",
        "examples",
        "predicted",
        "measured",
        "standard",
        "error",
    ]
    assert [line.split("  ")[0] for line in lines[3:]] == [g.name for g in wanted.groups]


def test_an_array_from_elsewhere(sawlog_, saved, tmp_path):
    sawlog_("validate", *saved, "--train", TRAIN, "--subsets", 8, "--seeds", 1)
    np.save(tmp_path / "theirs.npy", -retraining.influence())
    done = sawlog_("validate", tmp_path / "theirs.npy", saved[1], "--groups", -1, "--json")
    ours = sawlog_("validate", *saved, "--groups", -1, "--json")
    assert done.json["lds"] == -ours.json["lds"]
    assert done.json["groups"] == []
    done = sawlog_("validate", tmp_path / "theirs.npy", saved[1], "--save")
    assert done.code == 2
    assert "--save needs a folder of scores" in done.err


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["--train", "nowhere:f"], "there is no module 'nowhere'"),
        (["--train", "tests.influence.nowhere:f"], "there is no module 'tests.influence.nowhere'"),
        (["--train", "tests.influence.retraining:nothing"], "has no function 'nothing'"),
        (["--train", "train"], "--train must be MODULE:FUNCTION"),
        (["--train", TRAIN, "--subsets", "2"], "`subsets` must be an integer of at least 5"),
        ([], "no bank of retrained models at"),
    ],
)
def test_refused(sawlog_, saved, given, message):
    done = sawlog_("validate", *saved, *given)
    assert done.code == 2
    assert message in done.err


def test_a_file_that_is_no_array(sawlog_, saved, tmp_path):
    (tmp_path / "odd.npy").write_bytes(b"odd")
    done = sawlog_("validate", tmp_path / "odd.npy", saved[1])
    assert done.code == 2
    assert "is not an array that numpy can load" in done.err


def test_the_search_path_is_left_as_it_was(sawlog_, saved):
    before = list(sys.path)
    sawlog_("validate", *saved, "--train", TRAIN, "--subsets", 5, "--seeds", 1, "--groups", -1)
    assert sys.path == before


# -- every option, as the function gets it --------------------------------------------------------

DEFAULTS = {
    "drop": 0.5,
    "subsets": 100,
    "seeds": 5,
    "together": 1,
    "better": None,
    "groups": 2,
    "share": 0.05,
    "confidence": 0.95,
    "measure": None,
}
OPTIONS = [
    ([], {}),
    (["--train", TRAIN], {}),
    (["--measure", TRAIN], {"measure": retraining.train}),
    (["--drop", 0.25], {"drop": 0.25}),
    (["--subsets", 7], {"subsets": 7}),
    (["--seeds", 3], {"seeds": 3}),
    (["--together", 4], {"together": 4}),
    (["--better", "higher"], {"better": "higher"}),
    (["--better", "lower"], {"better": "lower"}),
    (["--groups", 0], {"groups": 0}),
    (["--groups", -1], {"groups": None}),
    (["--share", 0.1], {"share": 0.1}),
    (["--confidence", 0.5], {"confidence": 0.5}),
]


@pytest.mark.parametrize(("typed", "changed"), OPTIONS)
def test_options_of_validate(sawlog_, saved, monkeypatch, typed, changed):
    seen = []

    def spy(scores, train, **options):
        seen.append((train, options))
        return dataclasses.replace(scores, validation=VALIDATION)

    monkeypatch.setattr(_validate.influence, "validate", spy)
    done = sawlog_("validate", *saved, "--json", *typed)
    assert (done.code, done.err) == (0, "")
    ((train, options),) = seen
    assert train is (retraining.train if "--train" in typed else None)
    assert options.pop("bank") == saved[1]
    options.pop("progress")
    assert options == {**DEFAULTS, **changed}


def test_no_option_of_validate_is_left_out():
    tried = {str(each).removeprefix("--") for typed, _ in OPTIONS for each in typed[:1]}
    assert {each.name for each in dataclasses.fields(_validate.Validate)} == {
        *tried,
        *("scores", "bank", "save", "json"),  # those that the other tests are about
    }


VALIDATION = influence.Validation(
    lds=0.5,
    low=0.25,
    high=0.75,
    confidence=0.95,
    attainable=None,
    per_query=np.zeros(len(QUERIES)),
    subsets=5,
    drop=0.5,
    models=5,
    groups=(),
)

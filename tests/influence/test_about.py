"""What scores say about how they were made is what was asked for."""

import numpy as np
import pytest

from sawlog.curvature import Relative
from sawlog.errors import WeightsMismatchError
from sawlog.influence import Components, Logs, attribute
from sawlog.run_files._provenance import Provenance
from tests.influence.stores import written

RNG = np.random.default_rng(0)
ROWS = {"a": RNG.normal(size=(7, 3, 2)), "b": RNG.normal(size=(7, 4))}
ASKED = {name: rows[:2] for name, rows in ROWS.items()}


def _of(weights, rows):
    return Logs(rows, meta={"provenance": [Provenance(weights).to_json()]})


def test_the_weights_of_both_sides():
    logs, asked = _of("earlier", ROWS), _of("later", ASKED)
    with pytest.raises(WeightsMismatchError):
        attribute(logs, asked, curvature="diagonal")
    about = attribute(logs, asked, curvature="diagonal", weights="any").about
    assert about["weights"] == {"train": ["earlier"], "queries": ["later"]}


def test_both_stores_and_the_number_of_examples(tmp_path):
    written(tmp_path / "train", ROWS, np.arange(7))
    written(tmp_path / "asked", ASKED, np.arange(2))
    about = attribute(tmp_path / "train", tmp_path / "asked", curvature="identity").about
    assert about["train"] == str(tmp_path / "train")
    assert about["queries"] == str(tmp_path / "asked")
    assert about["examples"] == 7


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, {"mode": "dot", "curvature": "diagonal"}),
        ({"mode": "cosine"}, {"mode": "cosine"}),
        ({"curvature": "fisher"}, {"curvature": "fisher"}),
        ({"curvature": "identity"}, {"damping": {"a": 0.0, "b": 0.0}}),
        ({"damping": 0.25}, {"damping": {"a": 0.25, "b": 0.25}}),
        ({"damping": {"a": 1.0, "b": 2.0}}, {"damping": {"a": 1.0, "b": 2.0}}),
        (
            {"damping": Relative(0.5)},
            {"damping": {n: 0.5 * (r**2).mean() for n, r in ROWS.items()}},
        ),
        ({"top_k": 3, "sign": "negative"}, {"top_k": 3, "sign": "negative"}),
        ({"mix": 0.25}, {"mix": "0.25", "second_moments": False, "unit": None}),
        ({"mix": Components(1)}, {"mix": "Components(count=1)", "unit": None}),
        (
            {"second_moments": {n: r[0] ** 2 for n, r in ROWS.items()}},
            {"mix": "None", "second_moments": True, "unit": None},
        ),
    ],
)
def test_each_option(options, said):
    about = attribute(ROWS, ASKED, **{"curvature": "diagonal", **options}).about
    for name, value in said.items():
        assert about[name] == (pytest.approx(value) if name == "damping" else value)
    assert ("top_k" in about) == ("sign" in about) == ("top_k" in options)
    assert ("unit" in about) == bool({"mix", "second_moments"} & options.keys())

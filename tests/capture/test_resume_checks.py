"""What a pass compares with the rows that it continues."""

import dataclasses
from pathlib import Path

import pytest

from sawlog.capture._resume import check_projection, check_same_setup
from sawlog.errors import ArgumentError, WeightsMismatchError
from sawlog.run_files._options import Options, read
from sawlog.run_files._provenance import Provenance


def _known(*projections):
    return [Provenance("same weights", {}, each) for each in projections]


@pytest.mark.parametrize("before", [(), ("a",), ("a", "a")])
def test_rows_of_one_projection_go_on(before):
    check_projection(_known(*before), *_known("a"), Path("run"))


@pytest.mark.parametrize("before", [("b",), ("a", "b"), ("b", "a"), ("",)])
def test_rows_of_any_other_projection_are_refused(before):
    with pytest.raises(WeightsMismatchError, match="principal directions of other covariances"):
        check_projection(_known(*before), *_known("a"), Path("run"))


OTHERS = {
    "log": ["forward", "grad"],
    "save": [],
    "statistic": ["kfac"],
    "compress": {"rank": 2},
    "dtype": "int8",
    "precision": "float64",
    "reduction": "sum",
    "forward": "output",
    "duplicates": "first",
    "fisher": "true",
    "fisher_seed": 1,
}
FREE = {"offload": True, "interval": 1.0, "weights": "any", "nonfinite": "skip"}
PLAIN = {"options": Options().to_json(), "blocks": [{"name": "w"}], "factors": "of K-FAC"}


def _changed(name, value):
    given = {name: value, **({"statistic": "kfac"} if name in ("save", "fisher") else {})}
    return {**PLAIN, "options": read(given).to_json()}


def test_every_option_is_one_or_the_other():
    assert OTHERS.keys() | FREE.keys() == {each.name for each in dataclasses.fields(Options)}


@pytest.mark.parametrize("name", OTHERS)
def test_an_option_of_what_is_logged_may_not_change(name):
    before, now = PLAIN, _changed(name, OTHERS[name])
    for one, other in ((before, now), (now, before)):
        with pytest.raises(ArgumentError, match=f"another setup: .*{name} was "):
            check_same_setup(one, other, Path("run"))
    if name not in ("save", "fisher"):
        check_same_setup(before, now, Path("run"), free=[name])


@pytest.mark.parametrize("name", FREE)
def test_an_option_of_how_it_is_logged_may_change(name):
    check_same_setup(PLAIN, _changed(name, FREE[name]), Path("run"))


def test_layers_and_the_basis_may_not_change():
    check_same_setup(PLAIN, PLAIN, Path("run"))
    with pytest.raises(ArgumentError, match="other layers, or other shapes"):
        check_same_setup(PLAIN, {**PLAIN, "blocks": []}, Path("run"))
    for factors in ("of another", None):
        with pytest.raises(ArgumentError, match="eigenbasis of another K-FAC"):
            check_same_setup(PLAIN, {**PLAIN, "factors": factors}, Path("run"))


def test_options_that_an_earlier_version_did_not_have_were_the_default():
    known = {name: value for name, value in PLAIN["options"].items() if name != "fisher_seed"}
    check_same_setup({**PLAIN, "options": known}, PLAIN, Path("run"))

"""Argument checks: what they return, what they refuse, and in which words."""

from pathlib import Path

import numpy as np
import pytest

from sawlog import _validate
from sawlog.errors import ArgumentError

ACCEPTED = [
    (_validate.positive_integer, 3, 3),
    (_validate.positive_integer, np.int8(3), 3),
    (_validate.integer, -3, -3),
    (_validate.number, np.float32(0.5), 0.5),
    (_validate.positive_number, 2, 2.0),
    (_validate.non_negative_number, 0, 0.0),
    (_validate.fraction, 0, 0.0),
    (_validate.fraction, 1, 1.0),
    (_validate.byte_size, 1, 1),
    (_validate.byte_size, "0.5g", 500_000_000),
    (_validate.flag, False, False),
    (_validate.string, "", ""),
    (_validate.function, len, len),
    (_validate.path, "/a/./b", Path("/a/b")),
    (_validate.path, Path("/a"), Path("/a")),
]
REFUSED = [
    (_validate.positive_integer, "a positive integer", [0, -1, True, 1.0, "1", None, np.ones(2)]),
    (_validate.integer, "an integer", [1.5, False, None, "2"]),
    (_validate.number, "a finite number", [np.nan, np.inf, True, "1", None, 1j]),
    (_validate.positive_number, "a positive number", [0, -1.0, np.inf, None]),
    (_validate.non_negative_number, "a non-negative number", [-1e-9, np.nan]),
    (_validate.fraction, "a number from 0 to 1", [-0.1, 1.1, np.nan, None]),
    (_validate.byte_size, "a number of bytes", [0, -1, 1.5, True, "", "-1", "GB", "1 EB", "1.2.3"]),
    (_validate.flag, "True or False", [0, 1, None, "yes"]),
    (_validate.string, "a string", [None, 1, b"a"]),
    (_validate.function, "a function", [None, "len"]),
    (_validate.path, "a path", [None, 1, b"a"]),
]


@pytest.mark.parametrize(("check", "given", "found"), ACCEPTED)
def test_accepted(check, given, found):
    result = check("name", given)
    assert result == found
    assert type(result) is type(found)


@pytest.mark.parametrize(("check", "required", "values"), REFUSED)
def test_refused(check, required, values):
    for value in values:
        with pytest.raises(ArgumentError) as caught:
            check("name", value, hint="use another.")
        assert str(caught.value).startswith(f"`name` must be {required}")
        assert str(caught.value).endswith(f"; got {value!r}. Hint: use another.")


@pytest.mark.parametrize(("least", "required"), [(0, "non-negative integer"), (5, "at least 5")])
def test_bounds(least, required):
    assert _validate.integer("n", least, least) == least
    with pytest.raises(ArgumentError, match=required):
        _validate.integer("n", least - 1, least)


def test_one_of():
    assert _validate.one_of("mode", "dot", ("dot", None)) == "dot"
    assert _validate.one_of("mode", None, ("dot", None)) is None
    for value in (["dot"], {}, 1, np.zeros(2), True):
        with pytest.raises(ArgumentError, match="`mode` must be one of 'dot', None; got"):
            _validate.one_of("mode", value, ("dot", None))
    with pytest.raises(ArgumentError, match=r"got 'zz'\.$"):
        _validate.one_of("mode", "zz", ["dot", "cosine"])
    with pytest.raises(ArgumentError, match=r"Hint: read the page\.$"):
        _validate.one_of("mode", "cosin", ["dot", "cosine"], hint="read the page.")


def test_long_values_are_cut():
    with pytest.raises(ArgumentError) as caught:
        _validate.positive_integer("n", "x" * 10_000)
    assert len(str(caught.value)) < 300


def test_instances_and_options():
    assert _validate.instance("path", Path("a"), Path) == Path("a")
    assert _validate.optional(_validate.flag, "quiet", None) is None
    assert _validate.optional(_validate.flag, "quiet", True) is True
    with pytest.raises(ArgumentError, match="--top must be a non-negative integer; got -1"):
        _validate.integer("--top", -1, 0)
    with pytest.raises(ArgumentError, match="`error` must be an ArgumentError; got 3"):
        _validate.instance("error", 3, ArgumentError)

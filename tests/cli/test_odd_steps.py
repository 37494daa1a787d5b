"""Step axes of other things than numbers: no curve over them, and every command answers."""

import ml_dtypes
import numpy as np
import pytest

from sawlog import store
from sawlog.inspect import series_curves

ODD = {
    "texts": np.array(["warm", "up", "x"]),
    "bytes": np.array([b"a", b"b", b"c"]),
    "complex": np.array([1j, 2, 3]),
    "fields": np.zeros(3, [("a", "i4")]),
    "vectors": np.arange(6).reshape(3, 2),
    "nothing": np.zeros((3, 0)),
    "void": np.zeros(3, "V2"),
}
NUMBERS = {
    "times": (np.array([1, 2, 5], "M8[s]"), [1.0, 2.0, 5.0]),
    "spans": (np.array([1, 2, 5], "m8[s]"), [1.0, 2.0, 5.0]),
    "bfloat16": (np.array([1, 2, 5], ml_dtypes.bfloat16), [1.0, 2.0, 5.0]),
    "bool": (np.array([False, False, True]), [0.0, 0.0, 1.0]),
}


def answers(run, path):
    for name, *more in (("show",), ("tail",), ("plot",), ("compare", path), ("report", "-o")):
        page = [f"{path}.html"] if name == "report" else []
        done = run(name, path, *more, *page)
        assert done.code == 0, done.err


@pytest.mark.parametrize("steps", ODD.values(), ids=ODD)
def test_no_numbers(tmp_path, sawlog_, steps):
    path = str(tmp_path / "s")
    with store.create(path) as writer:
        writer.extend({"x": np.array([4.0, 2.0, 1.0])}, at=steps)
    answers(sawlog_, path)
    ((curve,),) = (each.curves for each in series_curves(path))
    assert (curve.axis, curve.steps.tolist()) == (None, [0.0, 1.0, 2.0])
    assert curve.mean.tolist() == [4.0, 2.0, 1.0]


@pytest.mark.parametrize("kind", NUMBERS)
def test_numbers_and_times(tmp_path, sawlog_, kind):
    path = str(tmp_path / "s")
    steps, drawn = NUMBERS[kind]
    with store.create(path) as writer:
        writer.extend({"x": np.array([1.0, 2.0, 4.0])}, at=steps)
    answers(sawlog_, path)
    ((curve,),) = (each.curves for each in series_curves(path, points=2))
    assert curve.axis == "at"
    assert set(curve.steps.tolist()) <= set(drawn)

"""A store with one of everything, to be read from FORMAT.md alone."""

import ml_dtypes
import numpy as np

from sawlog import store
from sawlog.testing import assert_same

from .numbers import NAMES, expected, write_numbers
from .plain_reader import PlainStore
from .xxh3 import xxh3_64

SEED = 7
COUNT = 40


def raw(array):
    """An array as the plain reader returns it: types that numpy lacks as their bytes."""
    array = np.asarray(array)
    if array.dtype.isbuiltin != 2:  # 2: somebody else's type, here that of ml_dtypes
        return array
    if array.dtype == ml_dtypes.bfloat16:
        return array.view(np.uint16)
    if array.dtype.name in ("float8_e4m3fn", "float8_e5m2"):
        return array.view(np.uint8)
    return np.frombuffer(array.tobytes(), np.uint8).reshape(*array.shape, array.dtype.itemsize)


def write_in_segments(path):
    """Forty numbers, written by two writers in several segments."""
    for start in (0, COUNT // 2):
        with store.create(path, exists="append", meta={"owner": "ann"}) as writer:
            for begin in range(start, start + COUNT // 2, 5):
                write_numbers(writer, range(begin, begin + 5))
                writer.flush()
    return path


def check_numbers(path, count=COUNT, hash=xxh3_64):
    """The plain reader finds everything that `write_numbers` wrote, exactly once, in order."""
    plain = PlainStore(path, hash)
    assert plain.missing == []
    assert list(plain.columns) == NAMES
    truth = expected(np.arange(count))
    assert plain.ids("grad") == plain.ids("label") == truth.numbers.tolist()
    assert plain.ids("text") == truth.texts
    for name in ("grad", "label", "text"):
        assert_same(np.stack(list(plain.rows(name).values())), truth.columns[name], name)
    for name in ("loss", "act"):
        values, steps, mask, notes = plain.series(name)
        assert_same(values, raw(truth.columns[name]), name)
        assert list(steps) == list(truth.steps[name])
        for axis, each in truth.steps[name].items():
            assert_same(steps[axis], each, f"{axis} of {name}")
        assert (mask is None) == (name == "loss")
        assert notes == truth.notes[name]
    assert_same(mask, truth.mask)
    return plain

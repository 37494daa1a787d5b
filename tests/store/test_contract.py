"""The store keeps the contract that ships with the package, and the contract is a real one."""

import subprocess
import sys

import numpy as np
import pytest

import sawlog.testing
from sawlog import store
from sawlog.testing import StoreContract, assert_same, sample


class TestStore(StoreContract):
    pass


class TestSmallSegments(StoreContract):
    """The same with a store that cuts its segments as small as it can."""

    def create(self, path, **options):
        return store.create(path, **{"segment_bytes": 1, "interval": None} | options)

    def open(self, path, mode="read", **options):
        more = {"segment_bytes": 1, "interval": None} if mode == "append" else {}
        return store.open(path, mode, **more | options)


FAULTS = {
    "_forgets_a_row": ("test_rows_round_trip", lambda ids, values: (ids[:-1], _cut(values))),
    "_swaps_rows": ("test_gather", lambda ids, values: (ids[::-1], values)),
    "_casts": ("test_rows_of_a_dtype", lambda ids, values: (ids, _cast(values))),
}


def _cut(values):
    return {name: each[:-1] for name, each in values.items()}


def _cast(values):
    return {name: np.asarray(each).astype("S3") for name, each in values.items()}


class Faulty:
    """A writer that does something to every batch."""

    def __init__(self, writer, fault):
        self._writer, self._fault = writer, fault

    def __getattr__(self, name):
        return getattr(self._writer, name)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._writer.close()

    def append(self, ids, values):
        return self._writer.append(*self._fault(ids, values))


@pytest.mark.parametrize("fault", FAULTS)
def test_the_contract_can_fail(tmp_path, fault):
    name, change = FAULTS[fault]

    class Contract(StoreContract):
        def create(self, path, **options):
            return Faulty(store.create(path, **options), change)

    arguments = {
        "test_rows_round_trip": ("int",),
        "test_gather": ("int", [0, 4, 5]),
        "test_rows_of_a_dtype": (np.dtype("float32"), (3,)),
    }
    test = getattr(Contract(), name)
    with pytest.raises(AssertionError):
        test(Contract().make_path(tmp_path), *arguments[name])


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (np.zeros(2), np.zeros(3)),
        (np.zeros(2), np.zeros(2, np.float32)),
        (np.zeros(2), np.array([0.0, -0.0])),
        (np.array([b"a"], "S2"), np.array([b"b"], "S2")),
        (np.array(["NaT"], "M8[s]"), np.array([0], "M8[s]")),
        (np.array([1], np.longdouble), np.array([2], np.longdouble)),
        (np.array([(1, 2)], "i4,i4"), np.array([(1, 3)], "i4,i4")),
        (np.array([(1, [2, 3])], "i4,2i4"), np.array([(1, [2, 4])], "i4,2i4")),
    ],
)
def test_what_is_not_the_same(found, expected):
    assert_same(found, found.copy())
    with pytest.raises(AssertionError):
        assert_same(found, expected)


@pytest.mark.parametrize("dtype", ["f4", "U3", "S2", "V3", "?", "M8[s]", "g", "i4,2f4,U2"])
def test_samples_are_reproducible_and_vary(dtype):
    assert_same(sample(dtype, (40,), 1), sample(dtype, (40,), 1))
    with pytest.raises(AssertionError):
        assert_same(sample(dtype, (40,), 1), sample(dtype, (40,), 2))


def test_the_module_needs_pytest_only_when_used():
    code = (
        "import sys, sawlog.testing; print({'pytest', 'jax', 'torch', 'numpy'} & set(sys.modules))"
    )
    command = [sys.executable, "-c", code]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "set()\n"
    assert set(dir(sawlog.testing)) >= set(sawlog.testing.__all__)
    with pytest.raises(AttributeError, match="StoreContract"):
        sawlog.testing.StoreContrct  # noqa: B018

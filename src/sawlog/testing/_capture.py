"""``CaptureContract``: per-example gradients and influence scores of any library."""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from typing import Any

import numpy as np
import pytest

from sawlog import store
from sawlog.run_files import _checkpoint as checkpoint
from sawlog.testing._capture_cases import CASES, CaptureCase


class CaptureContract:
    """What a library for per-example gradients and influence must compute.

    Subclass it, build the model of a case in your framework with the weights of the case, and
    return what your library computes. The answers are written out in numpy.

    Attributes:
        rtol: The relative tolerance; set it to 1e-9 or so for a library that computes in float64.

    .. code-block:: python

        class TestMyLibrary(CaptureContract):
            def gradients(self, case):
                model = build(case.name, case.weights)
                return my_library.per_example_gradients(model, case.inputs, case.targets)

            def scores(self, case):
                model = build(case.name, case.weights)
                return my_library.influence(model, case.inputs, case.targets)
    """

    rtol = 1e-5

    def gradients(self, case: CaptureCase) -> Mapping[str, Any]:
        """Return the gradient of each example for each parameter, ``[examples, *shape]``."""
        raise NotImplementedError

    def scores(self, case: CaptureCase) -> Any:
        """Return the influence of each example on each, without a curvature.

        These are the inner products of their gradients over all parameters, ``[examples,
        examples]``, with the queries first.
        """
        raise NotImplementedError

    @pytest.fixture(params=list(CASES))
    def case(self, request: pytest.FixtureRequest) -> CaptureCase:
        """Return a model with its data."""
        return CASES[request.param]()

    def test_gradients(self, case: CaptureCase) -> None:
        """Every example has the gradient of a batch that consists of it alone."""
        found = dict(self.gradients(case))
        assert set(found) == set(case.weights)
        for name, expected in case.gradients.items():
            rows = np.asarray(found[name], np.float64)
            assert rows.shape == expected.shape, name
            assert _error(rows, expected) <= self.rtol, name

    def test_scores(self, case: CaptureCase) -> None:
        """Scores are inner products of gradients."""
        matrix = case.matrix()
        found = np.asarray(self.scores(case), np.float64)
        assert found.shape == (len(matrix), len(matrix))
        assert _error(found, matrix @ matrix.T) <= self.rtol


def assert_same_runs(
    one: str | PathLike[str], other: str | PathLike[str], rtol: float = 1e-5
) -> None:
    """Assert that two stores of runs have the same examples with equal rows and statistics.

    They may come from different frameworks: names, shapes and numbers are compared, not the
    fingerprints of weights.

    Args:
        one, other: The paths of two stores, ``run.store_path``.
        rtol: The tolerance, relative to the norm of each log.

    Raises:
        AssertionError: They differ; the message says where.
    """
    with store.open(one) as ours, store.open(other) as theirs:
        _assert_same_rows(ours, theirs, rtol)
        folders = [reader.path.parent.parent / "statistics" for reader in (ours, theirs)]
        names = [sorted(_statistics_folders(folder)) for folder in folders]
        assert names[0] == names[1], "different statistics were measured"
        for name in names[0]:
            _assert_same_statistics(folders[0] / name, folders[1] / name, rtol)


def _assert_same_rows(ours: store.Reader, theirs: store.Reader, rtol: float) -> None:
    both = (ours, theirs)
    tables = [{name for table in each.schema.tables for name in table.names} for each in both]
    assert tables[0] == tables[1], "the stores have different logs"
    assert tables[0], "the stores have no rows"
    for name in sorted(tables[0]):
        ids = np.sort(np.asarray(ours.ids(name)))
        assert ids.tolist() == np.sort(np.asarray(theirs.ids(name))).tolist(), name
        mine, yours = (reader.gather(ids, [name])[name] for reader in both)
        assert mine.shape == yours.shape, name
        assert _error(np.asarray(mine), np.asarray(yours)) <= rtol, name


def _statistics_folders(folder: Any) -> set[str]:
    """Return the folders that hold parts of statistics."""
    return {part.parent.relative_to(folder).as_posix() for part in folder.glob("**/part-*")}


def _assert_same_statistics(one: Any, other: Any, rtol: float) -> None:
    found = [_measured(folder) for folder in (one, other)]
    assert set(found[0]) == set(found[1]), f"the statistics in {one.name} have different names"
    for name, (mine, count) in found[0].items():
        yours, others = found[1][name]
        assert count == others, f"{name} counts {count} and {others}"
        assert _error(mine, yours) <= rtol, name


def _measured(folder: Any) -> dict[str, tuple[np.ndarray, int]]:
    found = checkpoint.joined(checkpoint.load_parts(folder), folder)
    return {} if found is None else found.arrays


def _error(found: np.ndarray, expected: np.ndarray) -> float:
    """Return the error relative to the norm of what is expected."""
    found, expected = found.astype(np.float64), expected.astype(np.float64)
    size = max(float(np.linalg.norm(expected)), 1e-30)
    return float(np.linalg.norm(found - expected)) / size

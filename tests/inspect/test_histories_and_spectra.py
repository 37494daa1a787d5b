"""Logged arrays as histograms, and the eigenvalues of saved curvatures, against plain numpy."""

import io

import numpy as np
import pytest

import sawlog.store
from sawlog import curvature
from sawlog.inspect._array_history import BINS, array_histories
from sawlog.inspect._spectra import MOST, curvature_spectra


def logged(path, arrays):
    """Write arrays one by one, in a segment each."""
    with sawlog.store.create(path, merge=False) as writer:
        for step, array in enumerate(arrays):
            writer.log({"w": array}, step=10 * step)
            writer.flush()
    return path


def test_some_entries_of_all_segments(tmp_path):
    random = np.random.default_rng(0)
    arrays = [random.normal(size=3) + step for step in range(7)]
    arrays[3][1] = np.nan
    arrays[6][:] = np.inf
    (found,) = array_histories(logged(tmp_path / "s", arrays), entries=3)
    assert (found.name, found.type, found.total) == ("w", "float64[3]", 7)
    assert [entry.steps for entry in found.entries] == [{"step": 0}, {"step": 30}, {"step": 60}]
    assert [entry.nonfinite for entry in found.entries] == [0, 1, 3]
    finite = [arrays[0], arrays[3][[0, 2]]]
    low, high = min(map(np.min, finite)), max(map(np.max, finite))
    np.testing.assert_allclose(found.edges, np.linspace(low, high, BINS + 1))
    for entry, own in zip(found.entries, finite, strict=False):
        assert (entry.least, entry.greatest) == (own.min(), own.max())
        assert entry.mean == pytest.approx(own.mean())
        places = np.minimum(((own - low) / (high - low) * BINS).astype(int), BINS - 1)
        assert entry.counts == np.bincount(places, minlength=BINS).tolist()
    last = found.entries[2]
    assert (last.least, last.mean, last.greatest, sum(last.counts)) == (None, None, None, 0)


def test_images_and_masks(tmp_path):
    from PIL import Image

    picture = np.arange(12, dtype=np.uint8).reshape(3, 4)
    with sawlog.store.create(tmp_path / "s") as writer:
        entries = sawlog.records.Entries(
            np.stack([picture] * 3),
            {"step": np.arange(3)},
            mask=np.array([[True] * 3, [False] * 3, [True, False, True]]),
        )
        writer.write(sawlog.records.Records({"w": entries}))
    (found,) = array_histories(tmp_path / "s")
    whole, part = found.entries  # the second is masked entirely
    assert [entry.steps["step"] for entry in found.entries] == [0, 2]
    pixels = np.asarray(Image.open(io.BytesIO(whole.image)))
    assert (pixels.argmin(), pixels.argmax(), pixels.shape) == (0, 11, (3, 4))
    assert (sum(whole.counts), sum(part.counts), part.image) == (12, 8, None)
    assert part.mean == picture[[0, 2]].mean()


def test_spectra(tmp_path):
    """Two rows of six elements have four directions more, whose eigenvalue is 0."""
    rows = np.random.default_rng(1).normal(size=(2, 3, 2))
    fitted = curvature.fit("fisher", lambda: iter([{"w": rows}]))
    fitted.save(tmp_path / "curvature" / "fisher")
    (found,) = curvature_spectra(tmp_path)
    assert (found.kind, found.count, found.problem) == ("fisher", 2, None)
    (layer,) = found.layers
    flat = rows.reshape(2, 6)
    values = np.linalg.eigvalsh(flat.T @ flat / 2)[::-1]
    np.testing.assert_allclose(layer.values, values[:2])
    assert (layer.name, layer.ranks, layer.directions) == ("w", [0, 1], 6)
    typical = (values**2).sum() / values.sum()
    assert layer.damping == pytest.approx(0.1 * values.sum() / 6 + 3 * typical / 2)


def test_many_eigenvalues_are_thinned(tmp_path):
    rows = np.random.default_rng(2).normal(size=(3, 500))
    fitted = curvature.fit("diagonal", lambda: iter([{"w": rows}]))
    fitted.save(tmp_path / "curvature" / "diagonal")
    (layer,) = curvature_spectra(tmp_path)[0].layers
    values = np.sort((rows**2).mean(0))[::-1]
    assert layer.ranks[0] == 0
    assert layer.ranks[-1] == 499
    assert len(layer.ranks) <= MOST
    np.testing.assert_allclose(layer.values, values[layer.ranks])


def test_a_curvature_that_cannot_be_read(tmp_path):
    sawlog.store.create(tmp_path / "curvature" / "odd").close()
    (found,) = curvature_spectra(tmp_path)
    assert (found.kind, found.count, found.layers) == ("odd", None, [])
    assert found.problem

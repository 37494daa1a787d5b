"""Statistics on disk: the newest state counts, at whatever line a program was killed."""

import numpy as np
import pytest

from sawlog.errors import DuplicateIdError, StoreWriteError
from sawlog.run_files import _checkpoint as checkpoint
from sawlog.run_files._statistics import RunStatistics


def _sums(*values):
    """The statistics of examples with these values, batch by batch."""
    found = RunStatistics("float64")
    for each in values:
        rows = np.array(each, float)[:, None]
        found.add("x", rows.sum(0), len(rows))
        found.add_rows("x", rows)
    return found.arrays()


@pytest.mark.parametrize("kept", [(), (1,), (2,), (0, 1), (0, 1, 2, 3, 4)])
def test_the_newest_state_counts_if_older_ones_could_not_be_removed(tmp_path, monkeypatch, kept):
    """A program is killed between the rename and the removal, or somebody reads the older one."""
    plain = checkpoint.remove_store
    for turn in range(5):

        def remove(path, turn=turn):
            if turn in kept:
                raise StoreWriteError("in use")
            plain(path)

        monkeypatch.setattr(checkpoint, "remove_store", remove)
        ids = np.arange(turn + 1)
        checkpoint.save(tmp_path / "part-a", _sums(range(turn + 1)), ids, {"turn": turn})
        found = checkpoint.load(tmp_path / "part-a")
        assert found.about == {"turn": turn}
        assert found.ids.tolist() == ids.tolist()
        assert found.arrays["sum/x"][0].tolist() == [sum(range(turn + 1))]
        assert {count for _, count in found.arrays.values()} == {turn + 1}
    assert len(list((tmp_path / "part-a").iterdir())) <= 1 + len(kept)


def test_parts_are_summed(tmp_path):
    """As if one process had counted all examples, though batches and parts differ in size."""
    for number, values in enumerate(([[1, 2, 7]], [[4], [0, 9]], [[5, 5, 5, 5, 8]])):
        size = sum(map(len, values))
        ids = 10 * number + np.arange(size)
        checkpoint.save(tmp_path / f"part-{number}", _sums(*values), ids, {"number": number})
    whole = checkpoint.joined(checkpoint.load_parts(tmp_path), tmp_path)
    every = np.array([1, 2, 7, 4, 0, 9, 5, 5, 5, 5, 8], float)
    assert whole.ids.tolist() == [0, 1, 2, 10, 11, 12, 20, 21, 22, 23, 24]
    assert whole.about == {"number": 2}
    assert {count for _, count in whole.arrays.values()} == {len(every)}
    assert whole.arrays["sum/x"][0].tolist() == [every.sum()]
    np.testing.assert_allclose(whole.arrays["mean/x"][0], [every.mean()])
    np.testing.assert_allclose(whole.arrays["squares/x"][0], [len(every) * every.var()])
    assert checkpoint.joined([], tmp_path) is None


@pytest.mark.parametrize("twice", [[3], [3, 5]])
def test_an_example_of_two_parts_is_refused(tmp_path, twice):
    for number, ids in enumerate(([1, 3, 5], [2, *twice])):
        checkpoint.save(tmp_path / f"part-{number}", _sums([1.0]), np.array(ids), {})
    with pytest.raises(DuplicateIdError, match=f"{len(twice)} examples .* such as {twice[0]}"):
        checkpoint.joined(checkpoint.load_parts(tmp_path), tmp_path)

"""An example that is logged twice: an error, or the first or the last of its rows is kept."""

import numpy as np
import pytest
import torch

import sawlog
from sawlog.errors import ArgumentError, DuplicateIdError
from sawlog.influence import Logs

FIRST = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
AGAIN = torch.tensor([[5.0, 6.0], [7.0, 8.0]])


def _logged(root, batches, programs, **options):
    """Log batches, one program after the other; the gradient of an example is its input."""
    model = torch.nn.Linear(2, 1, bias=False)
    torch.nn.init.ones_(model.weight)
    for each in (batches,) if programs == 1 else [[batch] for batch in batches]:
        run = sawlog.init(project="run", root=root)
        run.setup(**options)
        run.watch(model, quiet=True)
        try:
            for ids, x in each:
                with run(data_id=ids):
                    model(x).sum(1).sum().backward()
        finally:
            run.close()
    logs = Logs(run.store_path)
    rows = logs.whole()
    return dict(zip(np.asarray(rows.ids).tolist(), rows.rows()["weight"][:, 0], strict=True))


@pytest.mark.parametrize("programs", [1, 2])
@pytest.mark.parametrize("kind", [list, lambda ids: [f"t{each}" for each in ids]])
@pytest.mark.parametrize("duplicates", ["first", "last"])
def test_the_first_or_the_last_is_kept(tmp_path, duplicates, kind, programs):
    batches = [(kind([4, 2]), FIRST), (kind([2, 9]), AGAIN)]
    found = _logged(tmp_path, batches, programs, duplicates=duplicates)
    (four, two), nine = kind([4, 2]), kind([9])[0]
    assert found.keys() == {four, two, nine}
    np.testing.assert_array_equal(found[four], FIRST[0])
    np.testing.assert_array_equal(found[two], FIRST[1] if duplicates == "first" else AGAIN[0])
    np.testing.assert_array_equal(found[nine], AGAIN[1])


@pytest.mark.parametrize("duplicates", ["first", "last"])
def test_examples_that_a_batch_repeats(tmp_path, duplicates):
    batches = [([4, 2, 4], torch.cat([FIRST, AGAIN[:1]])), ([9, 9], FIRST)]
    found = _logged(tmp_path, batches, 1, duplicates=duplicates)
    four, nine = (FIRST[0], FIRST[0]) if duplicates == "first" else (AGAIN[0], FIRST[1])
    assert found.keys() == {4, 2, 9}
    for each, row in ((4, four), (2, FIRST[1]), (9, nine)):
        np.testing.assert_array_equal(found[each], row)
    with pytest.raises(ArgumentError, match=r"twice in one batch: 4.*duplicates='first'"):
        _logged(tmp_path / "other", batches, 1)


def test_by_default_it_is_an_error_and_nothing_of_the_batch_is_logged(tmp_path):
    batches = [([4, 2], FIRST), ([2, 9], AGAIN)]
    with pytest.raises(DuplicateIdError, match="1 of the ids were logged before: 2"):
        _logged(tmp_path, batches, 1)
    logs = Logs(tmp_path / "run" / "logs" / "whole-float32")
    assert np.asarray(logs.ids).tolist() == [4, 2]
    # A program that resumes logs what is missing; what is there stays.
    assert list(_logged(tmp_path, batches[1:], 1)) == [4, 2, 9]

"""What a pass compares with the rows that it continues."""

from pathlib import Path

import pytest

from sawlog.capture._resume import check_projection
from sawlog.errors import WeightsMismatchError
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

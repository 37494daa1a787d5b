"""A module that Lightning trains on two processes: rows are those of batches of one."""

import pytest

from tests.huggingface.test_ranks import launch


@pytest.mark.long
@pytest.mark.thorough
def test_two_ranks(tmp_path):
    codes, said = launch(tmp_path, 2, program="tests.lightning.rank_program")
    assert codes == [0, 0], said

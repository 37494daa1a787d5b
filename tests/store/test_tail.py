"""The end of a segment: checksums of everything before, and one of themselves."""

import numpy as np
import pytest

from sawlog import store
from sawlog.errors import DamagedStoreError


@pytest.mark.parametrize("back", [1, 8, 9, 16])
def test_a_changed_checksum_is_told_from_changed_data(tmp_path, back):
    """Also where only the last one changed, and the data is as it was."""
    with store.create(tmp_path / "s") as writer:
        writer.append(np.arange(3), {"x": np.arange(3.0), "y": np.arange(6.0).reshape(3, 2)})
    (segment,) = (tmp_path / "s" / "segments").iterdir()
    data = bytearray(segment.read_bytes())
    data[-back] ^= 1
    segment.write_bytes(data)
    with store.open(tmp_path / "s") as reader, pytest.raises(DamagedStoreError) as caught:
        reader.gather([1], ["x"])
    assert "its checksums were changed after it was written" in str(caught.value)
    report = store.verify(tmp_path / "s")
    assert not report.ok
    assert "its checksums were changed" in report.problems[0].what

"""How much memory a writer takes beside the arrays it is given."""

import subprocess
import sys
import textwrap

import numpy as np
import pytest

from sawlog import store
from sawlog.errors import DamagedStoreError
from tests.thorough import often

WRITE = """
    import resource, sys, numpy as np
    from sawlog import store
    megabytes, how = int(sys.argv[2]), sys.argv[3]
    peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    given = np.ones((1, megabytes << 18), np.float32)
    with store.create(sys.argv[1] + "/warm") as writer:
        writer.append([0], {"x": given[:, :10]})
        writer.log({"y": given[0, :10]}, step=0)
    before = peak()
    with store.create(sys.argv[1] + "/s") as writer:
        for number in range(4):
            given[0, 0] = number
            if how == "append":
                writer.append([number], {"x": given})
            else:
                writer.log({"x": given[0]}, step=number)
    print(peak() - before)
    with store.open(sys.argv[1] + "/s") as reader:
        found = [float(segment.values("x")[0, 0]) for segment in reader.segments]
        assert found == [0.0, 1.0, 2.0, 3.0], found
"""


@pytest.mark.parametrize("how", ["append", "log"])
def test_rows_larger_than_a_segment(tmp_path, how):
    """At most twice the row: one that is being written, one that was just given."""
    megabytes = often(48, 300)
    command = [sys.executable, "-c", textwrap.dedent(WRITE), str(tmp_path), str(megabytes), how]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert int(run.stdout) <= 2 * megabytes + 16


READ = """
    import resource, sys, numpy as np
    from sawlog import store
    megabytes = int(sys.argv[2])
    peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    with store.create(sys.argv[1] + "/s") as writer:
        small = np.ones((1, 10), np.float32)
        writer.append([0], {"warm": small})
    with store.open(sys.argv[1] + "/s") as reader:
        reader.gather([0], ["warm"])
    with store.open(sys.argv[1] + "/large") as reader:
        before = peak()
        rows = reader.gather([2, 1, 2], ["x"])["x"]
        print(peak() - before)
        assert rows[:, 0].tolist() == rows[:, -1].tolist() == [2.0, 1.0, 2.0]
"""


def test_reading_rows_larger_than_a_segment(tmp_path):
    """The rows that are returned, and the pages of the file that they are copied from."""
    megabytes = often(48, 300)
    with store.create(tmp_path / "large") as writer:
        for number in (1, 2):
            writer.append([number], {"x": np.full((1, megabytes << 18), number, np.float32)})
    command = [sys.executable, "-c", textwrap.dedent(READ), str(tmp_path), str(megabytes)]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert int(run.stdout) <= (3 + 2) * megabytes + 16


@pytest.mark.parametrize("together", [True, False])
def test_a_large_row_that_was_changed(tmp_path, together):
    """Large rows are checked where they are copied to."""
    rows = np.arange(3 << 18, dtype=np.float32).reshape(3, -1) + np.float32(0.5)
    with store.create(tmp_path / "s", interval=None) as writer:
        writer.append([1, 2, 3], {"x": rows})
    (file,) = (tmp_path / "s" / "segments").iterdir()
    data = bytearray(file.read_bytes())
    data[data.index(rows[1].tobytes()[:4096]) + (1 << 20) - 1] ^= 1  # the last byte of row 2
    file.write_bytes(data)
    with store.open(tmp_path / "s") as reader:
        assert (reader.gather([3, 1, 3])["x"] == rows[[2, 0, 2]]).all()
        with pytest.raises(DamagedStoreError, match="changed after"):
            reader.gather([1, 2] if together else [2])
        assert (reader.gather([1])["x"] == rows[:1]).all()

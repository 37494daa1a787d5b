"""How much memory a writer takes beside the arrays it is given."""

import subprocess
import sys
import textwrap

import pytest

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

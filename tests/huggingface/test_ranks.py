"""A causal language model in a Trainer on several processes: rows are those of batches of one."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.huggingface import rank_program
from tests.launched import free_port

ROOT = Path(__file__).parents[2]


def launch(folder, size, *step, program="tests.huggingface.rank_program"):
    """Run a function of a program in processes; return exit codes and what they said."""
    common = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
    common |= {"WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "OMP_NUM_THREADS": "1"}
    common |= {"MASTER_PORT": str(free_port())}
    command = [sys.executable, "-W", "ignore", "-m", program]
    started = [
        subprocess.Popen(
            [*command, str(folder), *step],
            env={**common, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(size)
    ]
    said = [process.communicate(timeout=600)[0] for process in started]
    return [process.returncode for process in started], "\n".join(said)


@pytest.mark.long
@pytest.mark.thorough
def test_two_ranks(tmp_path):
    codes, said = launch(tmp_path, 2, "main")
    assert codes == [0, 0], said


@pytest.mark.long
@pytest.mark.thorough
@pytest.mark.parametrize("size", [2, 3])
def test_a_sharded_model(size, tmp_path):
    codes, said = launch(tmp_path, size, "sharded")
    assert codes == [0] * size, said


@pytest.mark.long
@pytest.mark.thorough
@pytest.mark.parametrize(("statistic", "last", "size"), [("kfac", 8, 3), ("ekfac", 16, 2)])
def test_a_killed_rank(statistic, last, size, tmp_path):
    """The other stops with an error, and any number of processes goes on.

    Rows, statistics and scores are those of one process. The process is killed in the first pass
    over the data, whose first batches are those of the check, or in the second.
    """
    codes, said = launch(tmp_path, 2, "killed", statistic, str(last))
    assert codes == [7, -signal.SIGKILL], said
    codes, said = launch(tmp_path, size, "go_on", statistic)
    assert codes == [0] * size, said
    (tmp_path / "alone").mkdir()
    rank_program.go_on(tmp_path / "alone", statistic)
    expected = dict(np.load(tmp_path / "alone" / "found-0.npz"))
    for rank in range(size):
        found = dict(np.load(tmp_path / f"found-{rank}.npz"))
        assert set(found) == set(expected)
        for name, array in expected.items():
            close = np.linalg.norm(found[name] - array) <= 1e-6 * np.linalg.norm(array)
            assert close, name

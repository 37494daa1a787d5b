"""A causal language model in a Trainer on several processes: rows are those of batches of one."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.launched import free_port

ROOT = Path(__file__).parents[2]


def launch(folder, size, step):
    """Run a function of ``rank_program`` in processes; return exit codes and what they said."""
    common = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
    common |= {"WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "OMP_NUM_THREADS": "1"}
    common |= {"MASTER_PORT": str(free_port())}
    program = [sys.executable, "-W", "ignore", "-m", "tests.huggingface.rank_program"]
    started = [
        subprocess.Popen(
            [*program, str(folder), step],
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
def test_a_killed_rank(size, tmp_path):
    """The other stops with an error, and any number of processes goes on."""
    codes, said = launch(tmp_path, 2, "killed")
    assert codes == [7, -signal.SIGKILL], said
    codes, said = launch(tmp_path, size, "go_on")
    assert codes == [0] * size, said

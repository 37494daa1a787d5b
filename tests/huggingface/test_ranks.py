"""A causal language model in a Trainer on two processes: rows are those of batches of one."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.long
@pytest.mark.thorough
def test_two_ranks(tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    common = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}", "WORLD_SIZE": "2"}
    common |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
    program = [sys.executable, "-W", "ignore", "-m", "tests.huggingface.rank_program"]
    started = [
        subprocess.Popen(
            [*program, str(tmp_path)],
            env={**common, "RANK": rank, "LOCAL_RANK": rank},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in ("0", "1")
    ]
    said = [process.communicate(timeout=600)[0] for process in started]
    assert [process.returncode for process in started] == [0, 0], "\n".join(said)

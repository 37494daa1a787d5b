"""Start the processes of a job and wait for them; when one fails, the others are ended."""

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
MOST = 300.0  # seconds until a job counts as hanging


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def environment(**more):
    """The variables of this process, with those of a job; tests can be imported."""
    paths = os.pathsep.join([str(ROOT), *filter(None, sys.path)])
    return {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", **more}


def wait(processes, *, patience=2.0):
    """The exit codes of all processes; those that are left when one fails have so many seconds."""
    end = time.monotonic() + MOST
    try:
        while any(each.poll() is None for each in processes) and time.monotonic() < end:
            if any(each.poll() for each in processes):
                end = min(end, time.monotonic() + patience)
            time.sleep(0.05)
        return [each.poll() for each in processes]
    finally:
        for each in processes:
            each.kill()
            each.wait()


def start(module, *arguments, **variables):
    command = [sys.executable, "-m", module, *map(str, arguments)]
    return subprocess.Popen(command, env=environment(**variables))

"""Scripts that are forked are as if they had been started."""

import signal

import pytest

from tests.forks import Forks

SCRIPT = """
    import atexit, os, sys, json, decimal
    atexit.register(print, "at exit")
    print(sys.argv[1:], os.environ.get("COLOUR"), json.__name__)
    if sys.argv[1] == "kill":
        sys.stdout.flush()
        os.kill(os.getpid(), 9)
    if sys.argv[1] == "raise":
        raise ValueError("wrong")
    sys.exit({"one": 1, "none": None}.get(sys.argv[1], 0))
"""


@pytest.fixture(scope="module")
def forks():
    with Forks("json") as forks:
        yield forks


def test_how_scripts_end(forks):
    ends = {"none": 0, "one": 1, "raise": 1, "kill": -signal.SIGKILL}
    running = {name: forks.start(SCRIPT, name, env={"COLOUR": "red"}) for name in ends}
    assert {name: each.wait(60) for name, each in running.items()} == ends
    for name, each in running.items():
        assert f"['{name}'] red json" in each.output()
        assert ("at exit" in each.output()) == (name != "kill")
    assert "ValueError: wrong" in running["raise"].output()


def test_a_script_that_does_not_end(forks):
    running = forks.start("import time; print('here', flush=True); time.sleep(600)")
    with pytest.raises(TimeoutError, match="no end"):
        running.wait(0.3)
    assert running.wait(60) == -signal.SIGKILL

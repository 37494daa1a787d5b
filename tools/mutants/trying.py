"""Running tests against a changed copy of the tree, in processes that have imported much already.

Importing JAX and PyTorch takes longer than most tests. So one process imports what the tests need
of other packages, and for each mutant forks a child, which imports the changed code and runs.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path

COPIED = ("src", "tests", "tools", "docs", "examples", "README.md", "ARCHITECTURE.md")
PRELOADED = "numpy pytest rich xxhash jax jax.numpy torch"  # no plugin of pytest

NOTICED, SURVIVED, TIMED_OUT = "noticed", "survived", "timed out"
NO_TESTS = 5  # that of pytest
BROKEN = 70  # the exit code of a child that could not run any test


def copy_tree(root: Path, target: Path) -> None:
    """Copy the files that tests need."""
    ignore = shutil.ignore_patterns("__pycache__", "*.pyc")
    for name in (*COPIED, "pyproject.toml", "Makefile"):
        source = root / name
        if source.is_dir():
            shutil.copytree(source, target / name, ignore=ignore)
        elif source.exists():
            shutil.copy2(source, target / name)


def preload() -> None:
    """Import packages that do not change, as far as they are installed."""
    for name in os.environ.get("SAWLOG_MUTANTS_PRELOAD", PRELOADED).split():
        with contextlib.suppress(ImportError):
            importlib.import_module(name)


def outcome(tree: Path, tests: Sequence[str], seconds: float, said: Path) -> str:
    """Run these tests in ``tree``; ``said`` gets the output of a failure.

    Raises:
        SystemExit: pytest itself did not run, which says nothing about the tests.
    """
    child = os.fork()
    if child == 0:
        _run(tree, tests, said)  # does not return
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            code = os.waitstatus_to_exitcode(status)
            if code in (BROKEN, NO_TESTS):
                raise SystemExit(f"mutants: the tests did not run:\n{said.read_text()}")
            return SURVIVED if code == 0 else NOTICED
        time.sleep(0.01)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return TIMED_OUT


def _run(tree: Path, tests: Sequence[str], said: Path) -> None:
    code = BROKEN
    try:
        os.setpgid(0, 0)
        os.chdir(tree)
        sys.dont_write_bytecode = True
        sys.path[:0] = [str(tree / "src"), str(tree)]
        os.environ["PYTHONPATH"] = os.pathsep.join(sys.path[:2])
        os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
        with open(said, "w") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        chosen = tree / "chosen-tests.txt"
        chosen.write_text("\n".join(tests))
        import pytest

        code = int(pytest.main(["-x", "-q", "-n0", "-p", "no:cacheprovider", f"@{chosen}"]))
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)

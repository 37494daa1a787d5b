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
PRELOADED = "numpy pytest hypothesis rich xxhash jax jax.numpy torch"
_PRELOADED_ONES = "ignore::pytest.PytestAssertRewriteWarning"  # of plugins that were imported

NOTICED, SURVIVED, TIMED_OUT = "noticed", "survived", "timed out"


def copy_tree(root: Path, target: Path) -> None:
    """The files that tests need."""
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
    """What becomes of these tests in ``tree``; ``said`` gets the output of a failure."""
    child = os.fork()
    if child == 0:
        _run(tree, tests, said)  # does not return
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return SURVIVED if status == 0 else NOTICED
        time.sleep(0.01)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return TIMED_OUT


def _run(tree: Path, tests: Sequence[str], said: Path) -> None:
    code = 70
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

        options = ["-x", "-q", "-n0", "-p", "no:cacheprovider", "-W", _PRELOADED_ONES]
        code = int(pytest.main([*options, f"@{chosen}"]))
        sys.stdout.flush()
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)

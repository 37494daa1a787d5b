"""Set up the test process before any test module imports jax; no test may depend on the load.

Hypothesis has no deadlines, and does not mind a machine that is busy.
"""

import atexit
import gc
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import pytest
from _pytest.doctest import DoctestModule
from hypothesis import HealthCheck, settings

from tests.left_out import FRAMEWORKS, LEFT_OUT, complaint
from tests.thorough import THOROUGH, TURN
from tests.xla_flags import DEVICES, joined, quick

_MORE = [DEVICES] if THOROUGH else [DEVICES, *quick(version("jaxlib"))]
os.environ["XLA_FLAGS"] = joined(os.environ.get("XLA_FLAGS", ""), _MORE)

# Every worker has a core; threads of a worker would only wait for those of the others.
if "PYTEST_XDIST_WORKER" in os.environ:
    for _threads in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(_threads, "1")

# Most of the time of a store's test is spent waiting for the disk: `make test-thorough` uses it.
_MEMORY_DISK, _BYTES_NEEDED = Path("/dev/shm"), 6 << 30
_usable = not THOROUGH and os.access(_MEMORY_DISK, os.W_OK)
_TEMPORARY = "PYTEST_DEBUG_TEMPROOT"  # workers inherit it
_usable = _usable and _TEMPORARY not in os.environ
if _usable and shutil.disk_usage(_MEMORY_DISK).free >= _BYTES_NEEDED:
    os.environ[_TEMPORARY] = tempfile.mkdtemp(prefix="sawlog-tests-", dir=_MEMORY_DISK)
    atexit.register(shutil.rmtree, os.environ[_TEMPORARY], ignore_errors=True)

settings.register_profile("sawlog", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("sawlog")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what is marked ``thorough``, unless tests are chosen; long tests come first.

    Variants that are not in turn are marked here, so ``-m thorough`` runs all that is left out.
    """
    if begins_at_the_other_end(config):
        items.sort(key=lambda item: item.nodeid.startswith("tests/"))
    for item in variants_left_out(items):
        item.add_marker("thorough")
    chosen = THOROUGH or config.option.markexpr or "::" in "".join(config.args)
    left_out = [] if chosen else [item for item in items if item.get_closest_marker("thorough")]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        gone = set(left_out)
        items[:] = [item for item in items if item not in gone]
    items.sort(key=lambda item: item.get_closest_marker("long") is None)


def begins_at_the_other_end(config: pytest.Config) -> bool:
    """Whether this process collects ``tests`` before ``src``: every second worker does.

    In a fresh clone all modules have to be compiled. Each worker finds half of them compiled.
    """
    worker = os.environ.get("PYTEST_XDIST_WORKER", "gw0")
    return int(worker.removeprefix("gw")) % 2 == 1 and sorted(config.args) == ["src", "tests"]


def variants_left_out(items: list[pytest.Item], turn: int = TURN) -> list[pytest.Item]:
    """Return all but one of every n variants of each test marked ``turns(n)``; n is 2 by default.

    Which one it is differs from one n to the next, so that no parameter always has the same value.
    """
    variants: dict[str, list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("turns") is not None:
            variants.setdefault(item.nodeid.partition("[")[0], []).append(item)
    left_out = []
    for alike in variants.values():
        mark = alike[0].get_closest_marker("turns")
        every = min(mark.args[0] if mark is not None and mark.args else 2, len(alike))
        blocks = [alike[i : i + every] for i in range(0, len(alike), every)]
        for number, block in enumerate(blocks):
            own = block[(turn + number) % every % len(block)]
            left_out += [item for item in block if item is not own]
    return left_out


# What JAX keeps of thousands of programs is gigabytes, which every collection of garbage walks
# through, and sawlog asks for one where a run is in the way of another: what was imported is left
# out of that, now and by later tests, and what JAX keeps is dropped from time to time.
_TESTS_BETWEEN = 400
_run_since = 0


def pytest_collection_finish() -> None:
    """Leave out what is there from now on."""
    leave_out_of_collections()
    gc.set_threshold(20_000, 20, 20)


def leave_out_of_collections() -> None:
    """What is there, and is no garbage, is not looked at again."""
    gc.collect()
    gc.freeze()


def pytest_runtest_teardown() -> None:
    """Forget compiled programs."""
    global _run_since
    _run_since += 1
    if _run_since >= _TESTS_BETWEEN and "jax" in sys.modules:
        _run_since = 0
        sys.modules["jax"].clear_caches()
        leave_out_of_collections()


def keep_compiled_programs() -> None:
    """Use JAX's persistent compilation cache, in one folder for each worker.

    A test program is compiled in the first run on a machine and loaded in later ones. JAX keys the
    cache by the program, the flags and its version. Subprocesses of tests do not use it.
    """
    import jax

    worker = os.environ.get("PYTEST_XDIST_WORKER", "alone")
    root = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "sawlog" / "tests-xla"
    jax.config.update("jax_compilation_cache_dir", str(root / worker))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


@pytest.fixture(autouse=True)
def _no_current_run() -> Iterator[None]:
    """`sawlog.init` of one test does not take what the next one logs."""
    yield
    if "sawlog._current_run" in sys.modules:
        sys.modules["sawlog._current_run"].set_current(None)


@pytest.fixture(scope="module")
def tracker_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder below which trackers write: nothing goes to the network or the user's folders."""
    from tests.sinks._trackers import writing_below  # only these tests need trackers

    with writing_below(tmp_path_factory.mktemp("trackers")) as folder:
        yield folder


class ModulesWithExamples:
    """Look for doctests only in files that have a prompt: to look into a module is to import it."""

    @pytest.hookimpl(wrapper=True)
    def pytest_collect_file(self, file_path: Path) -> Iterator[None]:
        """Leave out the collector of doctests of a file without any."""
        collectors = yield
        if not any(isinstance(each, DoctestModule) for each in collectors):
            return collectors
        if b">>> " in file_path.read_bytes():
            return collectors
        return [each for each in collectors if not isinstance(each, DoctestModule)]


def pytest_configure(config: pytest.Config) -> None:
    """Refuse to run where a framework is missing by accident; set up the compilation cache."""
    if wrong := complaint():
        raise pytest.UsageError(wrong)
    config.pluginmanager.register(ModulesWithExamples())
    if begins_at_the_other_end(config):
        config.args = ["tests", "src"]
    runs_none = getattr(config.option, "numprocesses", None) and not hasattr(config, "workerinput")
    if "jax" not in LEFT_OUT and not THOROUGH and not runs_none:
        keep_compiled_programs()


def pytest_report_header() -> str:
    """Which frameworks the tests run with, and which they are asked to leave out."""
    there = [f"{name} {version(name)}" for name in FRAMEWORKS if name not in LEFT_OUT]
    return ", ".join(there + [f"{name} left out" for name in sorted(LEFT_OUT)])

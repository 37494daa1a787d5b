"""The checks of imports can fail: each is given a small tree with an offender."""

from pathlib import Path

import pytest

from tests.source_tree import Modules, read_modules

from .layering import (
    Check,
    check_direction,
    check_internals,
    check_optional,
    check_parameters,
    check_rooms,
)

CLEAN = {
    "__init__.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from .jax import log",
    "errors.py": "class SawlogError(Exception): ...",
    "_optional.py": "from .errors import SawlogError\ndef require(name): import wandb",
    "records.py": "from . import errors",
    "cli.py": "from sawlog import log\nimport sawlog.influence",
    "jax/__init__.py": "import jax\nfrom . import _spool\nfrom ..records import Record",
    "jax/_spool.py": '"""Unlike jax._src, public."""\nfrom .. import errors\nimport jax.numpy',
    "jax/_compat/private.py": "from jax._src import core",
    "jax/_compat/values.py": "import jax\nversion = jax.__version__\nname = 'jax._src.tree'",
    "sinks/wandb.py": "def connect():\n    import wandb\nversion = wandb.__version__",
    "influence/_scores.py": "from sawlog.curvature import _base\nfrom ..sinks import store",
    "torch/_rules/linear.py": "import torch\nfrom ... import records\nfrom .._hooks import hook",
}

DIRTY = [
    (check_direction, "records.py", "from .store import Reader"),
    (check_direction, "records.py", "import sawlog.jax"),
    (check_direction, "records.py", "from . import store"),
    (check_direction, "records.py", "def f():\n    from sawlog.store import Reader"),
    (check_direction, "records.py", "from sawlog import log"),
    (check_direction, "errors.py", "from ._optional import require"),
    (check_direction, "jax/_rules/loops.py", "from ...torch import _hooks"),
    (check_direction, "jax/_rules/loops.py", "from ... import torch"),
    (check_direction, "torch/_hooks.py", "import sawlog.jax._spool"),
    (check_direction, "cli.py", "from .lightning import Callback"),
    (check_direction, "sinks/store.py", "from ..curvature import _kfac"),
    (check_direction, "__init__.py", "from . import cli"),
    (check_direction, "misplaced.py", ""),
    (check_direction, "misplaced/__init__.py", ""),
    (check_optional, "__init__.py", "import jax"),
    (
        check_optional,
        "__init__.py",
        "try:\n    import torch\nexcept ImportError:\n    torch = None",
    ),
    (check_optional, "cli.py", "class A:\n    import wandb.sdk"),
    (check_optional, "cli.py", "if not TYPE_CHECKING:\n    import wandb"),
    (check_optional, "cli.py", "if TYPE_CHECKING:\n    pass\nelse:\n    import wandb"),
    (check_optional, "torch/_hooks.py", "import jax.numpy as jnp"),
    (check_optional, "jax/_spool.py", "from torch import Tensor"),
    (check_optional, "sinks/wandb.py", "import wandb"),
    (check_optional, "store/_writing/_writer.py", "def f():\n    import torch"),
    (check_optional, "factored/_dots.py", "def f():\n    from jax import numpy"),
    (check_internals, "jax/_spool.py", "from jax._src import core"),
    (check_internals, "jax/_spool.py", "from jax import _src"),
    (check_internals, "jax/_spool.py", "import jax._src.core as core"),
    (check_internals, "jax/_spool.py", "import jax as j\nx = j._src.core"),
    (check_internals, "jax/_spool.py", "import_module('jax._src.core')"),
    (check_internals, "jax/_versions.py", "from jax._src import core"),
    (check_rooms, "jax/_core/log.py", "from sawlog.jax._logdict.logdict import logdict"),
    (check_rooms, "jax/_rules/calls.py", "from sawlog.jax._capture import axes"),
    (check_rooms, "jax/_unknown/x.py", "import os"),
    (check_parameters, "jax/_spool.py", "x = eqn.params['jaxpr']"),
    (check_parameters, "jax/_rules/loops.py", "x = params.get('num_consts')"),
    (check_internals, "jax/_spool.py", "import jax\nnew = jax.__version__ > '0.10'"),
    (check_internals, "jax/_spool.py", "import jax\nnew = jax.version.__version_info__"),
    (check_internals, "jax/_spool.py", "from jax import __version_info__"),
    (check_internals, "jax/_spool.py", "def f():\n    import jax.version"),
    (check_internals, "loggers.py", "import importlib.metadata as m\nm.version('jax')"),
    (check_internals, "torch/_compat/private.py", "from jaxlib import version"),
    (check_internals, "jax/_compat/values.py", "from jax._src import core"),
]


def write_tree(root: Path, files: dict[str, str]) -> Modules:
    for path, source in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(source + "\n")
    return read_modules(root)


@pytest.mark.parametrize("check", [check_direction, check_optional, check_internals, check_rooms])
def test_a_clean_tree_passes(tmp_path, check: Check):
    assert check(write_tree(tmp_path, CLEAN)) == []


@pytest.mark.parametrize(("check", "path", "source"), DIRTY)
def test_each_guard_can_fail(tmp_path, check: Check, path: str, source: str):
    found = check(write_tree(tmp_path, CLEAN | {path: source}))
    assert found
    assert all(text.startswith(f"{path}:") for text in found), found

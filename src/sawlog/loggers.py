"""Loggers: logs from inside of JAX programs to where people look at them, one run for each seed.

>>> import tempfile, jax, jax.numpy as jnp, sawlog
>>> from sawlog.loggers import SaveLogger
>>> def train(key):
...     def step(x, i):
...         x = x + jax.random.uniform(jax.random.fold_in(key, i))
...         sawlog.log({"x": x}, step=i)
...         return x, None
...     return jax.lax.scan(step, 0.0, jnp.arange(3))[0]
>>> folder = tempfile.mkdtemp()
>>> with SaveLogger(folder) as logger:
...     def run(key):
...         state = logger.init(key)
...         return logger.spool(train, state)(key)
...     out = jax.jit(jax.vmap(run))(jax.vmap(jax.random.key)(jnp.arange(8)))
>>> print(sawlog.load(folder + "/seed-5").step["x"])
[0 1 2]
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sawlog.jax._disk import StoreSink
from sawlog.jax._logger import Logger as Logger
from sawlog.jax._runs import RunState as RunState
from sawlog.jax._runs import Sink as Sink

__all__ = ["Logger", "RunState", "SaveLogger", "Sink"]


class SaveLogger(Logger):
    """Writes each run to a store of its own, ``path/seed-0`` and so on.

    ``sawlog.load(path / "seed-0")`` gives the logs back bit for bit: those of ``spool`` as
    :func:`sawlog.spool` would have returned them, those of several calls one after the other.

    Args:
        path: the folder of all runs. A run is called after its key: ``seed-7`` for
            ``jax.random.key(7)`` and for the seed 7, ``key-6b200159-99ba4efe`` for others.
        exists: what to do about a run that is there already: ``"append"`` to it, ``"replace"`` it,
            or ``"error"``.
        options: those of :func:`sawlog.store.create`, as ``nan="error"`` or ``interval=5.0``, the
            seconds after which logs are on disk at the latest.

    ``sawlog.store.open(path / "seed-0").meta`` has the ``key`` of a run and its ``config``.
    Everything is on disk when ``flush``, ``finish`` or ``close`` returns, and at the end of the
    program.
    """

    def __init__(
        self, path: str | os.PathLike[str], *, exists: str = "append", **options: Any
    ) -> None:
        super().__init__(exists=exists)
        self.path = Path(path)
        self._options = options

    def __repr__(self) -> str:
        return f"SaveLogger({str(self.path)!r}, exists={self._exists!r})"

    def open_run(self, name: str, about: Mapping[str, Any], exists: str) -> StoreSink:
        """A store in a folder with the name of the run."""
        return StoreSink(self.path / name, exists=exists, meta=about, **self._options)

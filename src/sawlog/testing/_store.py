"""The contract of stores as one class."""

from __future__ import annotations

from sawlog.testing._dtypes import DtypeContract
from sawlog.testing._reading import ReadingContract
from sawlog.testing._rows import RowContract
from sawlog.testing._series import SeriesContract
from sawlog.testing._upkeep import UpkeepContract


class StoreContract(DtypeContract, RowContract, SeriesContract, ReadingContract, UpkeepContract):
    """Everything a store has to do; subclass it in a test module of your own.

    The hooks, all of which have a default, are ``make_path(tmp_path)``, ``create(path, **options)``
    and ``open(path, mode, **options)``, which return a writer or a reader as :mod:`sawlog.store`
    does, and ``compact(path)``.
    """

"""Tables of any library as plain rows and columns."""

import pandas as pd
import polars as pl
import pyarrow as pa

from sawlog import store
from sawlog.store._views._frames import to_arrow, to_pandas, to_polars

VIEWS = [to_arrow, to_pandas, to_polars]


def opened(path, fill, **options):
    with store.create(path, **options) as writer:
        fill(writer)
    return store.open(path)


def rows_of(table):
    """The rows of any of the three, as tuples of Python values."""
    if isinstance(table, pa.Table):
        return [tuple(row.values()) for row in table.to_pylist()]
    if isinstance(table, pl.DataFrame):
        return table.rows()
    plain = [[None if _missing(x) else x for x in table[name].tolist()] for name in table.columns]
    return list(zip(*plain, strict=True))


def _missing(cell):
    return cell is None or cell is pd.NA or cell is pd.NaT

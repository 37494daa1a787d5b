"""What a store or the folder of a run contains, as plain data.

Frozen dataclasses with ``to_json``. The command line shows them as tables; notebooks and reports
can use them directly. Nothing here needs a framework, or any package for display.

>>> import tempfile, sawlog.store
>>> folder = tempfile.mkdtemp()
>>> with sawlog.store.create(folder + "/run") as writer:
...     for step in range(4):
...         writer.log({"loss": 1.0 / (1 + step)}, step=step)
>>> summary = store_summary(folder + "/run")
>>> [(series.name, series.entries, series.last.value) for series in summary.series]
[('loss', 4, 0.25)]
>>> summary.series[0].trend.means(4), summary.to_json()["state"]
([1.0, 0.5, 0.3333333333333333, 0.25], 'closed')
>>> [overview.entries for overview in map(store_overview, find_stores(folder))]
[4]
"""

from __future__ import annotations

from sawlog.inspect._activity import WriterActivity as WriterActivity
from sawlog.inspect._activity import writer_activity as writer_activity
from sawlog.inspect._overview import StoreOverview as StoreOverview
from sawlog.inspect._overview import find_stores as find_stores
from sawlog.inspect._overview import store_overview as store_overview
from sawlog.inspect._runs import row_store as row_store
from sawlog.inspect._runs import row_stores as row_stores
from sawlog.inspect._summarize import store_summary as store_summary
from sawlog.inspect._summary import ColumnSummary as ColumnSummary
from sawlog.inspect._summary import LastValue as LastValue
from sawlog.inspect._summary import SeriesSummary as SeriesSummary
from sawlog.inspect._summary import StoreSummary as StoreSummary
from sawlog.inspect._summary import TableSummary as TableSummary
from sawlog.inspect._trend import Trend as Trend

__all__ = [
    "ColumnSummary",
    "LastValue",
    "SeriesSummary",
    "StoreOverview",
    "StoreSummary",
    "TableSummary",
    "Trend",
    "WriterActivity",
    "find_stores",
    "row_store",
    "row_stores",
    "store_overview",
    "store_summary",
    "writer_activity",
]

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
from sawlog.inspect._array_history import ArrayEntry as ArrayEntry
from sawlog.inspect._array_history import ArrayHistory as ArrayHistory
from sawlog.inspect._array_history import array_histories as array_histories
from sawlog.inspect._coverage import Coverage as Coverage
from sawlog.inspect._coverage import WatchedLayer as WatchedLayer
from sawlog.inspect._curves import Curve as Curve
from sawlog.inspect._curves import SeriesCurves as SeriesCurves
from sawlog.inspect._curves import series_curves as series_curves
from sawlog.inspect._overview import StoreOverview as StoreOverview
from sawlog.inspect._overview import find_stores as find_stores
from sawlog.inspect._overview import store_overview as store_overview
from sawlog.inspect._run_summary import RunSummary as RunSummary
from sawlog.inspect._run_summary import find_runs as find_runs
from sawlog.inspect._run_summary import run_summary as run_summary
from sawlog.inspect._runs import row_store as row_store
from sawlog.inspect._runs import row_stores as row_stores
from sawlog.inspect._spectra import CurvatureSpectrum as CurvatureSpectrum
from sawlog.inspect._spectra import LayerSpectrum as LayerSpectrum
from sawlog.inspect._spectra import curvature_spectra as curvature_spectra
from sawlog.inspect._summarize import store_summary as store_summary
from sawlog.inspect._summary import ColumnSummary as ColumnSummary
from sawlog.inspect._summary import LastValue as LastValue
from sawlog.inspect._summary import SeriesSummary as SeriesSummary
from sawlog.inspect._summary import StoreSummary as StoreSummary
from sawlog.inspect._summary import TableSummary as TableSummary
from sawlog.inspect._trend import Trend as Trend

__all__ = [
    "ArrayEntry",
    "ArrayHistory",
    "ColumnSummary",
    "Coverage",
    "CurvatureSpectrum",
    "Curve",
    "LastValue",
    "LayerSpectrum",
    "RunSummary",
    "SeriesCurves",
    "SeriesSummary",
    "StoreOverview",
    "StoreSummary",
    "TableSummary",
    "Trend",
    "WatchedLayer",
    "WriterActivity",
    "array_histories",
    "curvature_spectra",
    "find_runs",
    "find_stores",
    "row_store",
    "row_stores",
    "run_summary",
    "series_curves",
    "store_overview",
    "store_summary",
    "writer_activity",
]

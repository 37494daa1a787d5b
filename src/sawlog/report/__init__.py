"""Pages for people: a self-contained report of runs, and the same page live.

``write_report(paths, "report.html")`` writes one HTML file that needs no network, with curves,
arrays, stores and attributions. ``view_app(folder)`` is the application that ``sawlog view`` serves
on the loopback interface; ``with served(folder) as address:`` serves it from a thread. They show
what :mod:`sawlog.inspect` and :mod:`sawlog.influence` know as plain data.

The extra ``report`` installs plotly and Jinja2, and ``view`` Starlette and uvicorn as well.
"""

from __future__ import annotations

from sawlog.report._page import write_report as write_report
from sawlog.report._server import served as served
from sawlog.report._server import view_app as view_app
from sawlog.report._source import PageOptions as PageOptions
from sawlog.report._source import PageSource as PageSource

__all__ = ["PageOptions", "served", "view_app", "write_report"]

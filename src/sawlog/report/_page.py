"""``write_report``: all parts of a page, its style and its scripts in one HTML file."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from sawlog._atomic import replacing
from sawlog._optional import require
from sawlog.report._attribution import ScoredRun
from sawlog.report._encode import safe_json
from sawlog.report._source import PageOptions, PageSource

#: In the order in which they run; ``page.js`` starts the page.
SCRIPTS = (
    "dom.js",
    "source.js",
    "tables.js",
    "charts.js",
    "examples.js",
    "runs.js",
    "curves.js",
    "arrays.js",
    "store.js",
    "attribution.js",
    "labels.js",
    "page.js",
)
STYLES = ("theme.css", "page.css")

Progress = Callable[[int, int], None]


def write_report(
    paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    target: str | os.PathLike[str],
    *,
    options: PageOptions | None = None,
    scores: Sequence[str | os.PathLike[str] | ScoredRun] = (),
    overwrite: bool = True,
    progress: Progress | None = None,
) -> Path:
    """Write a page about runs: one HTML file that needs no network.

    Args:
        paths: runs, or folders whose runs to show; or one of them.
        target: the file to write.
        options: what the page contains.
        scores: further scores to show with the first run: paths of saved ones.
        overwrite: whether an existing file is replaced.
        progress: called with ``(parts done, parts in all)``.

    Raises:
        StoreNotFoundError: a path does not exist, or no run is found.
        FileExistsError: the file exists, and ``overwrite`` is false.
        MissingPackageError: plotly or Jinja2 is not installed.

    >>> import tempfile, sawlog.store
    >>> folder = Path(tempfile.mkdtemp())
    >>> with sawlog.store.create(folder / "run") as writer:
    ...     writer.log({"loss": 0.5}, step=0)
    >>> page = write_report([folder], folder / "report.html")
    >>> page.read_text()[:15]
    '<!doctype html>'
    """
    source = PageSource(paths, options, scores)
    names = list(source.parts())
    parts = {}
    for done, name in enumerate(names, 1):
        parts[name] = source.part(name)
        if progress is not None:
            progress(done, len(names))
    text = page_html(source.options.title, {n: safe_json(p) for n, p in parts.items()})
    place = Path(target)
    place.parent.mkdir(parents=True, exist_ok=True)
    with replacing(place, replace=overwrite) as file:
        file.write(text.encode())
    return place


def page_html(title: str, parts: dict[str, str]) -> str:
    """Return the whole page; ``parts`` are JSON by name."""
    return str(
        _template().render(
            title=title,
            live=False,
            base="",
            style=style(),
            script=script(),
            plotly=plotly_script(),
            parts=parts,
        )
    )


def live_html(title: str, base: str) -> str:
    """Return the page that fetches style, scripts and data from below ``base``."""
    return str(_template().render(title=title, live=True, base=base, parts={}))


@functools.cache
def _template() -> Any:
    jinja2: Any = require("jinja2", "report", "A report")
    text = resources.files("sawlog.report").joinpath("templates/page.html").read_text("utf-8")
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    return environment.from_string(text)


def _joined(names: Sequence[str]) -> str:
    folder = resources.files("sawlog.report").joinpath("static")
    return "\n".join(folder.joinpath(name).read_text("utf-8") for name in names)


@functools.cache
def style() -> str:
    """Return the style sheet."""
    return _joined(STYLES)


@functools.cache
def script() -> str:
    """Return the script of the page, in a scope of its own."""
    return f'(() => {{\n"use strict";\n{_joined(SCRIPTS)}\n}})();\n'


@functools.cache
def plotly_script() -> str:
    """Return the script of plotly, which its Python package contains.

    Raises:
        MissingPackageError: plotly is not installed.
    """
    offline: Any = require("plotly.offline", "report", "A report")
    return str(offline.get_plotlyjs())

"""Write ``docs/benchmarks.md`` from the results in ``benchmarks/results``.

``python -m tools.benchmark_page`` fills the places of ``benchmarks/page.md``, and checks the pages
that quote figures (``benchmarks/quotes.json``). A benchmark writes a result itself::

    python benchmarks/jax_logging.py --quick --save benchmarks/results/jax_logging.json

A place names a result, a row and, where it is not the ratio with two decimals, a field or format::

    {{jax_logging | run: tiny scan | jit(spool) / by hand}}
    {{jax_logging | 100,000 scalar logs | debug.callback a step / tap(buffer=100) | ,.0f}}
    {{jax_logging | 1,000 times logs + more | + / lists by hand | seconds .2f}}
    {{jax_logging}}   the command, and what is known about its run

The words of a row are the beginnings of its ``what`` and ``who``; they must fit one row.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
TEMPLATE = ROOT / "benchmarks" / "page.md"
QUOTES = ROOT / "benchmarks" / "quotes.json"
PAGE = ROOT / "docs" / "benchmarks.md"
_PLACE = re.compile(r"\{\{(.+?)\}\}")
_RATE = re.compile(r": ([\d.,]+) ")
_NAMES = {"python": "Python", "jax": "JAX", "torch": "PyTorch"}


def load(folder: Path = RESULTS) -> dict[str, dict[str, Any]]:
    """Return the results by name."""
    files = sorted(folder.glob("*.json"))
    return {path.stem: json.loads(path.read_text("utf-8")) for path in files}


def filled(text: str, results: dict[str, dict[str, Any]]) -> str:
    """Return a text with its places filled.

    Raises:
        LookupError: a place fits no row of the results, or several.
    """
    return _PLACE.sub(lambda found: _value(found[1], results), text)


def _value(place: str, results: dict[str, dict[str, Any]]) -> str:
    name, *rest = (part.strip() for part in place.split("|"))
    if name not in results:
        raise LookupError(f"{place}: there is no benchmarks/results/{name}.json")
    if not rest:
        return _about(results[name])
    what, who, *more = rest
    row = _row(results[name]["rows"], what, who, place)
    field, _, form = (more[0] if more else "ratio .2f").rpartition(" ")
    value = _rate(row) if field == "rate" else row[field or "ratio"]
    return format(value * 1000, form[2:]) if form.startswith("ms") else format(value, form)


def _row(rows: list[dict[str, Any]], what: str, who: str, place: str) -> dict[str, Any]:
    exact = [row for row in rows if (row["what"], row["who"]) == (what, who)]
    found = exact or [
        row for row in rows if row["what"].startswith(what) and row["who"].startswith(who)
    ]
    if len(found) != 1:
        raise LookupError(f"{place}: {len(found)} rows fit")
    return found[0]


def _rate(row: dict[str, Any]) -> float:
    """Return the rate that some benchmarks write behind the name, as in ``: 11.4 M pairs/s``."""
    (text,) = _RATE.findall(row["who"])
    return float(text.replace(",", ""))


def _about(result: dict[str, Any]) -> str:
    versions = ", ".join(
        f"{_NAMES.get(name, name)} {version}" for name, version in result["versions"].items()
    )
    parts = [versions, result.get("machine") or "", result.get("date") or ""]
    known = "; ".join(part for part in (*parts, result.get("remark") or "") if part)
    return f"`{result['command']}` ({known})" if known else f"`{result['command']}`"


def page(results: dict[str, dict[str, Any]]) -> str:
    """Return the page."""
    return filled(TEMPLATE.read_text("utf-8"), results)


def stale_quotes(results: dict[str, dict[str, Any]]) -> list[str]:
    """Return the sentences that other pages should contain, and do not."""
    quotes: dict[str, list[str]] = json.loads(QUOTES.read_text("utf-8"))
    missing = []
    for name, sentences in quotes.items():
        text = " ".join((ROOT / name).read_text("utf-8").split())
        wanted = [filled(sentence, results) for sentence in sentences]
        missing += [f"{name}: {each}" for each in wanted if each not in text]
    return missing


def main() -> int:
    """Write the page, and print what other pages should say."""
    results = load()
    PAGE.write_text(page(results), "utf-8")
    missing = stale_quotes(results)
    for each in missing:
        print(f"write this into {each}", file=sys.stderr)
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())

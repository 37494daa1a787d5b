"""Which tests use the processor, and how long: a pytest plugin, and a table of what it wrote.

    pytest -p tools.cpu_times --cpu-times=FILE       # every worker appends lines to the file
    python -m tools.cpu_times FILE [--top 150]       # the slowest tests, functions and files

Wall times say little on a busy machine. Processor time of a test includes its threads, and the
processes that it started and waited for.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest


def used() -> float:
    """Seconds of this process and of those that it waited for."""
    return sum(os.times()[:4])


class Meter:
    """Notes the seconds of each test, of collection and of all of the process."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def _write(self, name: str, seconds: float) -> None:
        with open(self._path, "a") as file:
            file.write(json.dumps([name, round(seconds, 4)]) + "\n")

    def pytest_collection_finish(self) -> None:
        """All until here is imports and collection."""
        self._write("(collection)", used())

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """Add up set-up, call and teardown."""
        before = used()
        result = yield
        self._write(item.nodeid, used() - before)
        return result

    def pytest_unconfigure(self) -> None:
        """Write the sum."""
        self._write("(process)", used())


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option."""
    parser.addoption("--cpu-times", help="append the CPU seconds of each test to this file")


def pytest_configure(config: pytest.Config) -> None:
    """Measure, in a process that runs tests itself."""
    runs_none = getattr(config.option, "numprocesses", None) and not hasattr(config, "workerinput")
    path = config.getoption("--cpu-times")
    if path and not runs_none:
        config.pluginmanager.register(Meter(Path(path).absolute()), "sawlog-cpu-times")


def table(sums: dict[str, float], counts: dict[str, int], top: int) -> Iterator[str]:
    """Lines of the largest sums."""
    total = 0.0
    for name in sorted(sums, key=lambda each: -sums[each])[:top]:
        total += sums[name]
        yield f"{sums[name]:8.2f} {total:8.1f} {counts[name]:5d}  {name}"


def main() -> None:
    """Print sums by file, by function and by test."""
    parser = argparse.ArgumentParser(prog="cpu_times", description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--top", type=int, default=60)
    options = parser.parse_args()
    rows = [json.loads(line) for line in options.file.read_text().splitlines()]
    for name in ("(process)", "(collection)"):
        own = [round(seconds, 1) for each, seconds in rows if each == name]
        print(f"{name} {own}, together {sum(own):.1f} s")
    tests = [row for row in rows if not row[0].startswith("(")]
    print(f"{len(tests)} tests, {sum(seconds for _, seconds in tests):.1f} s")
    for what, shorten in (("file", r"::.*"), ("function", r"\[.*"), ("test", r"$^")):
        sums: dict[str, float] = collections.defaultdict(float)
        counts: dict[str, int] = collections.defaultdict(int)
        for name, seconds in tests:
            short = re.sub(shorten, "", name, flags=re.DOTALL)
            sums[short] += seconds
            counts[short] += 1
        print(f"\n seconds      sum count  {what}")
        print("\n".join(table(sums, counts, options.top)))


if __name__ == "__main__":
    main()

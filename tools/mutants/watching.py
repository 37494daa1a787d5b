"""Which tests run which lines, and how long each takes: a pytest plugin and its results.

The plugin is loaded in every worker of a test run; each writes what it saw to a file of its own.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

FOLDER = "SAWLOG_MUTANTS_FOLDER"
SOURCE = "SAWLOG_MUTANTS_SOURCE"


class Watcher:
    """Notes the lines that each test runs."""

    def __init__(self, source: str, folder: Path) -> None:
        import coverage

        self._folder = folder
        self._seconds: dict[str, float] = {}
        self._coverage = coverage.Coverage(data_file=None, source=[source], config_file=False)
        self._coverage.start()
        self._tracer = sys.gettrace()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """Everything from here on is this test's; one before may have set a tracer of its own."""
        if self._tracer is not None and sys.gettrace() is not self._tracer:
            sys.settrace(self._tracer)
        self._coverage.switch_context(item.nodeid)
        result = yield
        self._coverage.switch_context("")
        return result

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Only tests that pass can notice anything."""
        if report.when == "call" and report.passed:
            self._seconds[report.nodeid] = report.duration

    def pytest_unconfigure(self) -> None:
        """Write what was seen."""
        self._coverage.stop()
        data = self._coverage.get_data()
        seen = {
            file: {
                str(line): [test for test in tests if test in self._seconds]
                for line, tests in data.contexts_by_lineno(file).items()
            }
            for file in data.measured_files()
        }
        text = json.dumps({"seconds": self._seconds, "lines": seen})
        (self._folder / f"{uuid.uuid4().hex}.json").write_text(text)


def pytest_configure(config: pytest.Config) -> None:
    """Watch, in a process that runs tests itself."""
    runs_none = getattr(config.option, "numprocesses", None) and not hasattr(config, "workerinput")
    if not runs_none:
        watcher = Watcher(os.environ[SOURCE], Path(os.environ[FOLDER]))
        config.pluginmanager.register(watcher, "sawlog-mutants")


@dataclasses.dataclass(frozen=True)
class Seen:
    """By file and line the tests that run it; by test its seconds."""

    lines: dict[str, dict[int, set[str]]]
    seconds: dict[str, float]

    @classmethod
    def read(cls, folder: Path) -> Seen:
        """Return what all workers saw."""
        lines: dict[str, dict[int, set[str]]] = {}
        seconds: dict[str, float] = {}
        for path in folder.glob("*.json"):
            part: dict[str, Any] = json.loads(path.read_text())
            seconds.update(part["seconds"])
            for file, by_line in part["lines"].items():
                own = lines.setdefault(file, {})
                for line, tests in by_line.items():
                    own.setdefault(int(line), set()).update(tests)
        return cls(lines, seconds)

    def tests(self, file: str, first: int, last: int) -> list[str]:
        """The tests that run any of these lines, the quickest first.

        Lines that run when the module is imported belong to every test that runs the module.
        """
        own = self.lines.get(file, {})
        found = set().union(*(own.get(line, set()) for line in range(first, last + 1)))
        if not found:
            found = set().union(*own.values())
        return sorted(found, key=lambda test: (self.seconds[test], test))

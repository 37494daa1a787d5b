"""Pages and examples use only names that the ``__all__`` of a package offers."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import sawlog
from sawlog.errors import MissingPackageError

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").glob("*.py")]
ATTRIBUTE = re.compile(r"\bsawlog\.(\w+)\.([A-Za-z]\w*)|(?<![\w./])(influence)\.(\w+)\(")
IMPORT = re.compile(r"^[> ]*from sawlog\.(\w+) import (\([^)]*\)|[\w, ]+)", re.MULTILINE)


def used_in(text: str) -> Iterator[tuple[str, str]]:
    """Yield the package and the name of each use of a name of a package of sawlog."""
    for match in ATTRIBUTE.finditer(text):
        yield match[1] or match[3], match[2] or match[4]
    for match in IMPORT.finditer(text):
        for name in match[2].strip("()").split(","):
            if name.strip():
                yield match[1], name.split(" as ")[0].strip()


def not_offered(text: str) -> set[str]:
    found = set()
    for package, name in used_in(text):
        try:
            offered = getattr(getattr(sawlog, package, None), "__all__", None)
        except MissingPackageError:
            continue
        if offered is not None and name not in offered:
            found.add(f"{package}.{name}")
    return found - {f"{package}.md" for package in sawlog._SUBMODULES}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_only_public_names(page):
    assert not_offered(page.read_text(encoding="utf-8")) == set()


def test_names_are_looked_up():
    text = "\n".join(
        [
            "sawlog.store.open(p), sawlog.store.forget(p), influence.attribute(a, b)",
            ">>> from sawlog.sinks import CsvSink, _lines as lines",
            "from sawlog.influence import (",
            "    attribute,",
            "    logs_of,",
            ")",
        ]
    )
    assert not_offered(text) == {"store.forget", "sinks._lines", "influence.logs_of"}
    assert not_offered("influence.curvature_of(run)") == {"influence.curvature_of"}

"""Benchmarks, examples and tools import names of sawlog that exist: no other test runs them all."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("benchmarks", "examples", "tools")


def missing_names(text: str) -> Iterator[str]:
    """Yield the names that a program imports from sawlog and that do not exist."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "sawlog":
            assert node.module is not None
            for alias in node.names:
                if not _has(node.module, alias.name):
                    yield f"{node.lineno}: {node.module}.{alias.name}"
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.partition(".")[0] == "sawlog" and _source(alias.name) is None:
                    yield f"{node.lineno}: {alias.name}"


def _source(module: str) -> Path | None:
    path = ROOT.joinpath("src", *module.split("."))
    for found in (path.with_suffix(".py"), path / "__init__.py"):
        if found.exists():
            return found
    return None


def _has(module: str, name: str) -> bool:
    source = _source(module)
    if source is None:
        return False
    names = set(_names(ast.parse(source.read_text()).body))
    return name in names or "__getattr__" in names or _source(f"{module}.{name}") is not None


def _names(body: list[ast.stmt]) -> Iterator[str]:
    """Yield what the statements of a module define, branches included."""
    for node in body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            yield from (alias.asname or alias.name for alias in node.names)
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            yield from (each.id for each in ast.walk(node) if isinstance(each, ast.Name))
        elif isinstance(node, (ast.If, ast.Try)):
            yield from _names([*node.body, *node.orelse])


def programs() -> list[Path]:
    return sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))


def test_programs_import_names_that_exist():
    found = programs()
    assert {"through_training.py", "demo.py"} <= {path.name for path in found}
    odd = [
        f"{path.relative_to(ROOT)}:{name}"
        for path in found
        for name in missing_names(path.read_text())
    ]
    assert odd == []


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("from sawlog.influence._averages._average import _averages", 1),
        ("from sawlog.influence import _averages, Scores\nimport sawlog.store", 0),
        ("def f():\n    from sawlog.nothing import name\n    import sawlog.nothing", 2),
        ("from sawlog.influence._averages._average import average, nothing", 1),
        ("from numpy import nothing", 0),
    ],
)
def test_a_missing_name_is_found(text, count):
    assert len(list(missing_names(text))) == count

"""Every cell of docs/compatibility.md names tests, and these tests exist."""

import ast
import functools
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "compatibility.md").read_text(encoding="utf-8")
TEST = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")


def rows(page):
    """The rows of all tables, as lists of cells; headings and rulers left out."""
    lines = [line for line in page.splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    heads = {i - 1 for i, row in enumerate(cells) if set(row[0]) == {"-"}}
    return [row for i, row in enumerate(cells) if i not in heads and set(row[0]) != {"-"}]


@functools.cache
def functions(path):
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def problems(page):
    """What is wrong with a page: a row without tests, or a test that does not exist."""
    found = []
    for name, *_, tests in rows(page):
        named = TEST.findall(tests)
        if not named:
            found.append(f"{name}: no tests")
        for path, function in named:
            if not (ROOT / path).exists() or function not in functions(path):
                found.append(f"{name}: {path}::{function} does not exist")
    return found


def test_every_cell_has_tests_that_exist():
    assert problems(PAGE) == []
    assert len(rows(PAGE)) > 15


def test_everything_has_a_row():
    things = ["DDP", "FSDP2", "AMP", "checkpointing", "torch.compile", "PEFT", "MoE", "Dask", "Ray"]
    things += ["Trainer", "TRL", "Lightning", "Accelerate"]
    things += ["jit", "shard_map", "several processes", "flax", "equinox", "haiku"]
    names = [row[0] for row in rows(PAGE)]
    assert [each for each in things if not any(each in name for name in names)] == []


def test_the_check_notices():
    head = "| | | tests |\n|---|---|---|\n"
    assert problems(head + "| a | yes | |") == ["a: no tests"]
    missing = "| b | yes | `tests/test_words.py::test_that_nobody_wrote` |"
    assert problems(head + missing) == [
        "b: tests/test_words.py::test_that_nobody_wrote does not exist"
    ]
    assert problems(head + "| c | yes | `tests/nowhere.py::test_x` |") != []
    assert problems(head + "| d | yes | `tests/test_compatibility.py::rows` |") == []

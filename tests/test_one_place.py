"""What is done in one place is done nowhere else."""

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "sawlog"
ONLY_IN = {"imports csv": {"_csv.py"}, "calls .cpu().numpy()": set()}


def done(text):
    """What a module does that has a place of its own."""
    found = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import) and any(name.name == "csv" for name in node.names):
            found.add("imports csv")
        if isinstance(node, ast.ImportFrom) and node.module == "csv" and not node.level:
            found.add("imports csv")
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(".cpu().numpy"):
            found.add("calls .cpu().numpy()")
    return found


@pytest.mark.parametrize("what", ONLY_IN)
def test_it_is_done_in_its_place_only(what):
    """CSV is read by ``_csv``; tensors become arrays by ``_arrays.to_numpy``, also bfloat16."""
    places = {
        path.relative_to(SOURCE).as_posix()
        for path in SOURCE.rglob("*.py")
        if what in done(path.read_text(encoding="utf-8"))
    }
    assert places == ONLY_IN[what]


def test_offenders_are_caught():
    assert done("import csv") == done("from csv import reader") == {"imports csv"}
    assert done("y = x.detach().cpu().numpy()") == {"calls .cpu().numpy()"}
    assert done("from sawlog._csv import cell") == done("from . import csv") == set()

"""The tool that breaks modules: it makes the changes it should, and finds what tests do not see."""

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tools.mutants.edits import edits_of, pick
from tools.mutants.watching import Seen

ROOT = Path(__file__).parents[1]


def changed(source: str) -> set[str]:
    data = source.encode()
    return {edit.apply(data).decode() for edit in edits_of(data)}


@pytest.mark.parametrize(
    ("source", "wanted"),
    [
        ("x = a < b", {"x = (a <= b)"}),
        ("x = a < b <= c", {"x = (a <= b <= c)", "x = (a < b < c)"}),
        ("x = a is None", {"x = (a is not None)"}),
        ("x = a + b", {"x = (a - b)"}),
        ("x = 'text' + b", set()),
        ("x = a and b", {"x = (a or b)", "x = (a)", "x = (b)"}),
        ("x = not a", {"x = (a)"}),
        ("x = -1", {"x = (1)"}),
        ("x = 7", {"x = (8)"}),
        ("x = 1", {"x = (2)", "x = (0)"}),
        ("x = True", {"x = (False)"}),
        ("x = 0.5", {"x = (1.0)"}),
        ("x = a[i:]", {"x = a[:]"}),
        ("x = max(a)", {"x = (min(a))"}),
        ("x = f(a, b)", {"x = (f(b, a))"}),
        ("x = f(a, k=b)", {"x = (f(a))"}),
        ("a.append(b)", {"pass", "(a.extend(b))"}),
        ("a += b", {"pass"}),
        ("a.b = c", {"pass"}),
        ("x = a if b else c", {"x = a if (True) else c", "x = a if (False) else c"}),
        ("def f(a: int = 3) -> 'x':\n    return a", {"def f(a: int = (4)) -> 'x':\n    return a"}),
        ("if a:\n    raise E(1 + 2)", {f"if ({v}):\n    raise E(1 + 2)" for v in (True, False)}),
        ('x = f"{a + 1}"', set()),
        ("for a in b:\n    break", {"for a in b:\n    continue"}),
        ("x = 'é' if a < b else c", {"x = 'é' if (a <= b) else c"}),
        ("x = a.T @ b", {"x = (a) @ b"}),
        ("x = range(n)", {"x = (range(n - 1))"}),
        ("x = f((a, b))", {"x = f(((a,)))", "x = f(((b,)))"}),
        ("x = [a for a in b if c]", {f"x = [a for a in b if ({v})]" for v in (True, False)}),
        ("x = where(a, b, c)", {"x = (where(b, a, c))", "x = (where(a, c, b))"}),
    ],
)
def test_changes(source: str, wanted: set[str]) -> None:
    found = changed(source)
    assert wanted <= found
    if "<" not in source:
        assert found == wanted


def test_some_of_the_changes() -> None:
    edits = edits_of(b"x = 1 + 2 + 3 + 4 + 5\n" * 10)
    assert list(pick(edits, None, 0)) == edits
    few = list(pick(edits, 7, 3))
    assert len(set(few)) == 7
    assert {edit.lines[0] for edit in few} > {2, 9}


def test_tests_of_a_line() -> None:
    lines = {3: {"slow", "quick"}, 4: {"other"}, 1: set()}
    seen = Seen({"m.py": lines}, {"slow": 2, "quick": 1, "other": 5})
    assert seen.tests("m.py", 3, 3) == ["quick", "slow"]
    assert seen.tests("m.py", 3, 4) == ["quick", "slow", "other"]
    assert seen.tests("m.py", 1, 1) == ["quick", "slow", "other"]  # runs at import: any of them
    assert seen.tests("n.py", 1, 1) == []


@pytest.mark.thorough
def test_survivors_are_found(tmp_path: Path) -> None:
    """A small project whose tests see one of two functions."""
    files = {
        "src/sawlog/__init__.py": "",
        "src/sawlog/a.py": """
            def seen(x):
                return x + x

            def unseen(x):
                return x * x
            """,
        "tests/test_a.py": """
            from sawlog.a import seen, unseen

            def test_seen():
                assert seen(3) == 6

            def test_unseen():
                unseen(3)
            """,
        "pyproject.toml": "[tool.pytest.ini_options]\ntestpaths = ['tests']\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(textwrap.dedent(text))
    saved = tmp_path / "rows.json"
    command = [sys.executable, "-m", "tools.mutants", "src/sawlog/a.py", "--root", str(tmp_path)]
    command += ["--workers", "0", "--save", str(saved), "--least", "90"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "SAWLOG_MUTANTS_PRELOAD": ""}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    rows = json.loads(saved.read_text())
    outcomes = {(row["before"], row["after"]): row["outcome"] for row in rows}
    assert outcomes == {
        ("x + x", "(x - x)"): "noticed",
        ("x * x", "(x / x)"): "survived",
    }
    assert "50.0 %" in done.stdout
    assert (tmp_path / "src/sawlog/a.py").read_text() == textwrap.dedent(files["src/sawlog/a.py"])


def test_what_does_not_run_is_no_notice(tmp_path: Path) -> None:
    """Pytest that fails by itself would notice everything."""
    ini = "[tool.pytest.ini_options]\nfilterwarnings = ['error']\n"
    (tmp_path / "pyproject.toml").write_text(ini)
    (tmp_path / "test_a.py").write_text("def test_a():\n    pass\n")
    code = (
        "from pathlib import Path; from tools.mutants import trying; trying.preload();"
        "print(trying.outcome(Path.cwd(), ['test_a.py::test_a'], 60, Path('said.txt')))"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "SAWLOG_MUTANTS_PRELOAD": "hypothesis"}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stdout
    assert "mutants: the tests did not run" in done.stderr
    assert "already imported" in done.stderr

"""Every Python block of the pages runs, and the output that a page shows is what is printed.

The blocks of a page share one namespace, from top to bottom. A block with `>>>` prompts is a
doctest. Any other block is run as it is; a `text` block right below it shows what it prints.
A `console` block has commands after `$`, each with its output; if all of them are `sawlog ...`,
they are run. A `py3` block is Python that is only shown: code of other libraries, to compare.
Where a framework is left out (see `left_out.py`), a page runs down to the block that imports it.
"""

import contextlib
import doctest
import io
import os
import re
import shlex
import sys
from collections.abc import Iterator, Set
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent
from unittest import mock

import pytest

from tests.left_out import LEFT_OUT

ROOT = Path(__file__).parents[1]
PAGES = sorted(
    {path for name in ("README.md", "ARCHITECTURE.md") if (path := ROOT / name).exists()}
    | set((ROOT / "docs").rglob("*.md"))
)
pytestmark = pytest.mark.long
FLAGS = doctest.ELLIPSIS
FENCE = re.compile(
    r"^(?P<indent>[ \t]*)```(?P<language>\w*)[^\n`]*\n(?P<body>.*?)^(?P=indent)```[ \t]*$",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class Block:
    """A block, the line it starts on (from 0), the output shown below it, and its language."""

    source: str
    line: int
    shown: str | None
    language: str = "python"


def blocks_of(text: str) -> list[Block]:
    fences = list(FENCE.finditer(text))
    blocks = []
    for fence, below in zip(fences, [*fences[1:], None], strict=False):
        if fence["language"] not in ("python", "py", "pycon", "python3", "console"):
            continue
        adjacent = below and not text[fence.end() : below.start()].strip(" \n:")
        shown = dedent(below["body"]) if adjacent and below["language"] == "text" else None
        line = text.count("\n", 0, fence.start("body"))
        blocks.append(Block(dedent(fence["body"]), line, shown, fence["language"]))
    return blocks


def check_page(text: str, name: str, left_out: Set[str] = frozenset()) -> int:
    """Run all blocks of a page and return how many there are; AssertionError on false output."""
    namespace: dict[str, object] = {"__name__": "__main__"}
    blocks = blocks_of(text)
    for block in blocks:
        if needed := imports_of(block.source) & left_out:
            pytest.skip(f"{name} from line {block.line + 1}: {', '.join(needed)} is left out")
        if block.language == "console":
            _run_console(block, name)
            continue
        run = _run_doctest if re.search(r"^\s*>>>", block.source, re.MULTILINE) else _run_plain
        run(block, name, namespace)
    return len(blocks)


def imports_of(source: str) -> set[str]:
    """The packages that a block imports."""
    lines = re.findall(r"^(?:>>> )?[ ]*(?:import|from) (.*?)(?: import .*)?$", source, re.MULTILINE)
    return {name.strip().partition(".")[0] for line in lines for name in line.split(",")}


def _run_doctest(block: Block, name: str, namespace: dict[str, object]) -> None:
    own = f"{name} line {block.line}"  # tracebacks find the source of a block by its name
    test = doctest.DocTestParser().get_doctest(block.source, {}, own, name, block.line)
    test.globs = namespace
    report: list[str] = []
    runner = doctest.DocTestRunner(optionflags=FLAGS)
    with _without_notes_of_jax():
        result = runner.run(test, out=report.append, clear_globs=False)
    assert result.attempted
    assert not result.failed, "".join(report)


@contextlib.contextmanager
def _without_notes_of_jax() -> Iterator[None]:
    """Leave out what JAX adds to messages about the frames that it removed from tracebacks."""
    if "jax" not in sys.modules:
        yield
        return
    config = sys.modules["jax"].config
    before = config.jax_traceback_filtering
    config.update("jax_traceback_filtering", "off")
    try:
        yield
    finally:
        config.update("jax_traceback_filtering", before)


def _run_plain(block: Block, name: str, namespace: dict[str, object]) -> None:
    code = compile("\n" * block.line + block.source, name, "exec")
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(code, namespace)
    if block.shown is not None:
        _check_output(block, name, block.source, block.shown, printed.getvalue())


def _run_console(block: Block, name: str) -> None:
    from sawlog.cli import main

    pairs = re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", block.source, re.MULTILINE)
    assert pairs, f"{name}, line {block.line + 1}: no command after `$ `"
    if not all(command.startswith("sawlog ") for command, _ in pairs):
        return
    for command, shown in pairs:
        wide = mock.patch.dict(os.environ, COLUMNS="240")  # however long the path of the folder is
        with contextlib.redirect_stdout(io.StringIO()) as printed, wide:
            main(shlex.split(command)[1:])
        if shown.strip():
            own = printed.getvalue().rstrip() + "\n"
            _check_output(block, name, command, shown.rstrip() + "\n", own)


def _check_output(block: Block, name: str, source: str, shown: str, printed: str) -> None:
    printed = re.sub(r"[ ]+$", "", printed, flags=re.MULTILINE)
    example = doctest.Example(source, shown)
    checker = doctest.OutputChecker()
    true = checker.check_output(example.want, printed, FLAGS)
    difference = checker.output_difference(example, printed, FLAGS)
    assert true, f"{name}, line {block.line + 1}\n{difference}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_page(page: Path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    count = check_page(page.read_text(encoding="utf-8"), page.name, LEFT_OUT)
    assert count >= 1 or page.name != "README.md"


def test_the_readme_is_among_the_pages():
    assert ROOT / "README.md" in PAGES


TRUE_PAGES = [
    "```python\n>>> 1 + 1\n2\n```\n",
    "```python\nx = 1\n```\nand then\n```python\n>>> x\n1\n```\n",
    "```python\n>>> print([0.25, 3])\n[0.2..., 3]\n```\n",
    "```python\nprint(1)\n```\n\n```text\n1\n```\n",
    "-\n\n  ```python\n  for i in (0, 1):\n      print(i)\n  ```\n  ```text\n  0\n  1\n  ```\n",
    "```python\nprint(1)\n```\nsome words\n```text\n2\n```\n",
    "```python title='a'\nimport math\n```\n",
    ":::{container}\n```py3\nundefined\n```\n```python\nprint(1)\n```\n:::\n```text\n1\n```\n",
    "```console\n$ pip install sawlog\n```\n```console\n$ sawlog ls nowhere\n```\n",
]

FALSE_PAGES = [
    ("```python\n>>> 1 + 1\n3\n```\n", AssertionError),
    ("```python\n>>> 1 + 1\n```\n", AssertionError),
    ("```python\n>>> undefined\n```\n", AssertionError),
    ("```python\nx = 1\n```\n```python\n>>> x\n2\n```\n", AssertionError),
    (":::\n```python\nprint(1)\n```\n:::\n```text\n2\n```\n", AssertionError),
    ("```console\n$ sawlog --version\n0\n```\n", AssertionError),
    ("```console\nsawlog ls\n```\n", AssertionError),
    ("```sh\nls\n```\n```pycon\n>>> 2\n1\n```\n", AssertionError),
    ("```python\nprint(1)\n```\n\n```text\n2\n```\n", AssertionError),
    ("1. item\n\n   ```python\n   >>> 1\n   2\n   ```\n", AssertionError),
    ("```python\nundefined\n```\n", NameError),
    ("```python\nnot: Python\n```\n", SyntaxError),
]


@pytest.mark.parametrize("text", TRUE_PAGES)
def test_true_output_passes(text):
    assert check_page(text, "page.md") == len(re.findall("```(?:python|console)", text))


@pytest.mark.parametrize(("text", "error"), FALSE_PAGES)
def test_false_output_fails(text, error):
    with pytest.raises(error):
        check_page(text, "page.md")


@pytest.mark.parametrize(
    "line",
    [
        ">>> import torch",
        "import tempfile, torch, numpy",
        ">>> from torch.nn import functional",
        ">>> import torch.nn as nn",
        "def f():\n    import torch",
    ],
)
def test_what_needs_a_framework_is_left_out_with_a_reason(line):
    page = f"```python\n>>> 1 + 1\n{{}}\n```\n```python\n{line}\n1 / 0\n```\n"
    with pytest.raises(pytest.skip.Exception, match=r"page\.md from line 6: torch is left out"):
        check_page(page.format(2), "page.md", {"torch"})
    with pytest.raises(AssertionError):  # what comes before is still run
        check_page(page.format(3), "page.md", {"torch"})


def test_pages_that_only_speak_of_a_framework_run():
    page = "```python\n>>> import torches\n```\n"
    with pytest.raises(AssertionError):
        check_page(page, "page.md", {"torch"})

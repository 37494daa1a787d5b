"""The source of sawlog as syntax trees, read once in a process."""

import ast
import functools
from pathlib import Path

ROOT = Path(__file__).parents[1] / "src" / "sawlog"

Modules = dict[str, ast.Module]


def read_modules(root: Path) -> Modules:
    """Return the tree of every module, by its path from the root."""
    return {
        path.relative_to(root).as_posix(): ast.parse(path.read_text(encoding="utf-8"))
        for path in sorted(root.rglob("*.py"))
    }


@functools.cache
def own_modules() -> Modules:
    """Return the trees of sawlog itself."""
    return read_modules(ROOT)

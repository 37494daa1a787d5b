"""The command: find the tests of each line, change one place at a time, list what survives."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from rich.progress import track
from rich.table import Table

from tools.mutants import trying, watching
from tools.mutants.edits import Edit, edits_of, pick

PACKAGE = Path("src/sawlog")
HERE = Path(__file__).parents[2]  # where this package is imported from


def modules_of(root: Path, names: list[str]) -> list[Path]:
    """Files, relative to the root: of paths, folders and dotted names."""
    found: list[Path] = []
    for name in names:
        path = Path(name) if "/" in name or name.endswith(".py") else Path("src", *name.split("."))
        path = path.relative_to(root) if path.is_absolute() else path
        if (root / path).is_dir():
            found += sorted(file.relative_to(root) for file in (root / path).rglob("*.py"))
        elif (root / path.with_suffix(".py")).is_file():
            found.append(path.with_suffix(".py"))
        else:
            raise SystemExit(f"mutants: there is no module {name!r} at {path}")
    return found


def tests_of(root: Path, module: Path) -> list[str]:
    """The tests that belong to a module: its own examples, and by the mirror layout."""
    parts = module.relative_to(PACKAGE).parts
    unit = parts[0].removesuffix(".py")
    own = [str(module)]
    if (root / "tests" / unit).is_dir():
        return [*own, f"tests/{unit}"]
    near = sorted((root / "tests").glob(f"test_*{unit.strip('_')}*.py"))
    return [*own, *(str(path.relative_to(root)) for path in near)] if near else [*own, "tests"]


def watch(tree: Path, tests: list[str], folder: Path, workers: str) -> watching.Seen:
    """Run the tests once, and see what they run."""
    environment = {
        **os.environ,
        watching.FOLDER: str(folder),
        watching.SOURCE: str(tree / "src" / "sawlog"),
        "PYTHONPATH": os.pathsep.join([str(tree / "src"), str(tree), str(HERE)]),
    }
    command = [sys.executable, "-m", "pytest", "-q", "-n", workers, "-p", "no:cacheprovider"]
    command += ["-p", "tools.mutants.watching", *dict.fromkeys(tests)]
    done = subprocess.run(command, cwd=tree, env=environment, check=False)
    if done.returncode not in (0, 1):
        raise SystemExit("mutants: the tests did not run; see above")
    if done.returncode:
        print("mutants: some tests fail without any change; they are left out", file=sys.stderr)
    return watching.Seen.read(folder)


def check_unchanged(tree: Path, file: Path, seen: watching.Seen, slack: float) -> None:
    """Stop where a test of the module fails though nothing was changed: it would notice all."""
    for test in seen.tests(str(file), 1, 1)[:1]:
        said = tree / "said.txt"
        if trying.outcome(tree, [test], slack + 10 * seen.seconds[test], said) != trying.SURVIVED:
            text = said.read_text()
            raise SystemExit(f"mutants: {test} fails when it is run alone, unchanged:\n{text}")


def survivors(
    tree: Path, module: Path, edits: list[Edit], seen: watching.Seen, slack: float
) -> Iterator[tuple[Edit, str, int]]:
    """Each edit, what became of it, and how many tests ran its lines."""
    file = tree / module
    source = file.read_bytes()
    check_unchanged(tree, file, seen, slack)
    try:
        for edit in track(edits, description=str(module), transient=True):
            tests = seen.tests(str(file), *edit.lines)
            if not tests:
                yield edit, "no test runs it", 0
                continue
            file.write_bytes(edit.apply(source))
            seconds = slack + 10 * sum(seen.seconds[test] for test in tests)
            yield edit, trying.outcome(tree, tests, seconds, tree / "said.txt"), len(tests)
    finally:
        file.write_bytes(source)


def main() -> int:
    """Run, and exit with 1 where fewer than ``--least`` percent were noticed."""
    parser = argparse.ArgumentParser(prog="mutants", description=__doc__)
    parser.add_argument("modules", nargs="+", help="files, folders or dotted names")
    parser.add_argument("--root", type=Path, default=Path.cwd(), help="the project's folder")
    parser.add_argument("--tests", nargs="*", help="the tests to run; else by the mirror layout")
    parser.add_argument("--most", type=int, help="how many changes of each module to try, at most")
    parser.add_argument("--seed", type=int, default=0, help="which of them")
    parser.add_argument("--workers", default="2", help="processes of the first run")
    parser.add_argument("--slack", type=float, default=120, help="seconds on top of a test's own")
    parser.add_argument("--least", type=float, default=0, help="percent that must be noticed")
    parser.add_argument("--save", type=Path, help="write all outcomes as JSON")
    options = parser.parse_args()
    root = options.root.resolve()
    modules = modules_of(root, options.modules)
    rows: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        tree, seen_at = Path(folder).resolve() / "tree", Path(folder).resolve() / "seen"
        tree.mkdir()
        seen_at.mkdir()
        trying.copy_tree(root, tree)
        tests = options.tests or [test for module in modules for test in tests_of(root, module)]
        seen = watch(tree, tests, seen_at, options.workers)
        trying.preload()
        for module in modules:
            source = (root / module).read_bytes()
            edits = list(pick(edits_of(source), options.most, options.seed))
            for edit, what, count in survivors(tree, module, edits, seen, options.slack):
                rows.append(row_of(module, source, edit, what, count))
    if options.save:
        options.save.write_text(json.dumps(rows, indent=1))
    return report(rows, options.least)


def row_of(module: Path, source: bytes, edit: Edit, what: str, count: int) -> dict[str, object]:
    """One outcome as plain data."""
    before = source[edit.start : edit.stop].decode()
    where = f"{module}:{edit.lines[0]}"
    change = {"before": before, "after": edit.new, "kind": edit.what}
    return {"where": where, **change, "outcome": what, "tests": count}


def report(rows: list[dict[str, object]], least: float) -> int:
    """Print what was not noticed."""
    left = [row for row in rows if row["outcome"] in (trying.SURVIVED, "no test runs it")]
    table = Table("where", "what", "before", "after", "outcome")
    for row in left:
        cells = (row["where"], row["kind"], row["before"], row["after"], row["outcome"])
        table.add_row(*(str(cell)[:70] for cell in cells))
    console = Console()
    if left:
        console.print(table, markup=False)
    share = 100 * (1 - len(left) / len(rows)) if rows else 100.0
    console.print(f"{len(rows)} mutants, {len(rows) - len(left)} noticed ({share:.1f} %)")
    return 0 if share >= least else 1


if __name__ == "__main__":
    sys.exit(main())

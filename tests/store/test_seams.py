"""Only `store/_disk` touches the disk, and only `_atomic` puts files and folders in place.

Every check reads the source with `ast`, so that it can be turned on the real tree (nothing may be
found) and on small bad ones (it must be found).
"""

import ast

import pytest

from tests.source_tree import own_modules

# What the rest of the store may have of `os`: nothing that opens, lists or changes a file.
OF_OS = {
    "PathLike",
    "cpu_count",
    "fsencode",
    "fspath",
    "getpid",
    "register_at_fork",
    "path.abspath",
}
MODULES = {"fcntl", "glob", "io", "mmap", "shutil", "tempfile"}
METHODS = {
    *("chmod", "exists", "glob", "hardlink_to", "is_dir", "is_file", "is_symlink", "iterdir"),
    *("lstat", "mkdir", "read_bytes", "read_text", "rename", "rglob", "rmdir", "samefile"),
    *("symlink_to", "touch", "unlink", "write_bytes", "write_text"),
}
# Exports go to files of the user's, anywhere; `_remove` clears whole folders, runs with several
# stores in them; `_process_group` asks the system about processes.
ELSEWHERE = (
    "store/_disk/",
    "store/_views/",
    "store/_maintenance/_remove.py",
    "store/_maintenance/_process_group.py",
)
MOVES = {"os.link", "os.rename", "os.replace", "shutil.move"}
MOVED = {name.partition(".")[2] for name in MOVES}
AT_HOME = ("_atomic.py", "store/_disk/")
READ_STRANGERS = ("cli/", "inspect/", "report/", "run_files/")
OF_THE_USER = (  # a configuration that the user names, and the page's own templates
    *("run_files/_logix_config.py", "run_files/_options.py"),
    "report/_page.py",
)


def touches_the_disk(modules):
    """Where the store touches files other than through `_disk`."""
    found = []
    for path, tree in modules.items():
        if not path.startswith("store/") or path.startswith(ELSEWHERE):
            continue
        for node in ast.walk(tree):
            if what := _touches(node):
                found.append(f"{path}:{node.lineno}: {what}")
    return found


def _touches(node):
    match node:
        case ast.Import(names=names):
            return next((a.name for a in names if a.name.partition(".")[0] in MODULES), None)
        case ast.ImportFrom(module=module, names=names):
            if (module or "").partition(".")[0] in MODULES:
                return module
            if module == "os":
                return next((f"os.{a.name}" for a in names if a.name not in OF_OS), None)
        case ast.Attribute(value=ast.Name(id="os"), attr=attr):
            return None if attr in OF_OS or attr == "path" else f"os.{attr}"
        case ast.Attribute(value=ast.Attribute(value=ast.Name(id="os"), attr="path"), attr=attr):
            return None if f"path.{attr}" in OF_OS else f"os.path.{attr}"
        case ast.Call(func=ast.Name(id="open")):
            return "open()"
        case ast.Call(func=ast.Attribute(value=owner, attr=attr)):
            if attr in METHODS and not ast.unparse(owner).endswith("disk"):
                return f".{attr}()"
    return None


def moves_files(modules):
    """Where a file or folder is put in place other than by the helpers of `_atomic`."""
    return [
        f"{path}:{node.lineno}: {ast.unparse(node)}"
        for path, tree in modules.items()
        if not path.startswith(AT_HOME)
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and node.attr in MOVED and ast.unparse(node) in MOVES
    ]


def reads_unguarded(modules):
    """Where files of a run are read other than by `_loose_json`, which no link or pipe can fool."""
    return [
        f"{path}:{node.lineno}: {ast.unparse(node)}"
        for path, tree in modules.items()
        if path.startswith(READ_STRANGERS) and path not in OF_THE_USER
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and node.attr in ("read_bytes", "read_text")
    ]


@pytest.mark.parametrize("check", [touches_the_disk, moves_files, reads_unguarded])
def test_the_tree_is_clean(check):
    modules = own_modules()
    assert {"_atomic.py", "store/_disk/_local.py", "store/_reading/_reader.py"} <= set(modules)
    assert check(modules) == []


def test_the_disk_itself_would_be_found():
    """Were the checks blind, they would pass on anything."""
    modules = own_modules()
    disk = {"_local": "store/_other.py", "_locks": "store/_locks_elsewhere.py"}
    moved = {there: modules[f"store/_disk/{name}.py"] for name, there in disk.items()}
    found = "\n".join(touches_the_disk(moved))
    for what in ("mmap", "fcntl", "os.open", "os.listdir", "os.lstat", "os.replace", "os.unlink"):
        assert what in found, what
    assert moves_files({"store/_other.py": modules["_atomic.py"]})
    assert reads_unguarded({"cli/_other.py": modules["run_files/_options.py"]})


@pytest.mark.parametrize(
    "source",
    [
        "import os\nos.listdir('.')",
        "import os\nos.path.exists('.')",
        "from os import rename",
        "import mmap",
        "def f():\n    import fcntl",
        "from shutil import rmtree",
        "open('x')",
        "path.unlink()",
        "(folder / 'x').read_bytes()",
        "for x in folder.glob('*'): pass",
    ],
)
def test_each_offence_is_found(source):
    assert touches_the_disk({"store/_reading/_reader.py": ast.parse(source)})
    assert not touches_the_disk({"store/_disk/_local.py": ast.parse(source)})


@pytest.mark.parametrize("source", ["import os\nos.replace(a, b)", "import shutil\nshutil.move(a)"])
def test_each_move_is_found(source):
    assert moves_files({"sinks/_csv.py": ast.parse(source)})

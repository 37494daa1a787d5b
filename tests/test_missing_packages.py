"""Without jax, torch or rich: what needs one of them tells how to install it, all else works."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import sawlog

SRC = Path(__file__).parents[1] / "src"

NEED_JAX = {
    *("Reduction", "load", "log_cotangent", "logdict", "logify", "register_rule", "save"),
    *("concat", "spool", "strip", "tap", "jax", "loggers"),
}
NEED_TORCH = {
    *("LogIX", "LogIXScheduler", "accelerate", "add_analysis", "add_lora", "analysis"),
    *("huggingface", "initialize_from_log", "lightning", "logix", "torch", "utils"),
}
NEED_NEITHER = {
    *("SawlogError", "__version__", "capture", "curvature", "errors", "example_data", "factored"),
    *("influence", "inspect", "log", "records", "report", "sinks", "store", "testing"),
    *("build_log_dataloader", "build_log_dataset", "check", "clear", "end", "eval", "extract"),
    *("finalize", "get_log", "init", "setup", "start", "watch"),
}

# Two ways in which packages can be missing.
HIDE = "sys.modules.update(dict.fromkeys(blocked))"
BLOCK = """
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in blocked:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Block())
"""

# Runs in a fresh interpreter, and prints what each statement of stdin raises: class, text, name.
PROBE = """
import json, pickle, sys
blocked = {blocked!r}
{how}
found = {{}}
for statement in json.load(sys.stdin):
    try:
        exec(statement, {{}})
    except Exception as error:
        again = pickle.loads(pickle.dumps(error))
        assert (type(again), str(again)) == (type(error), str(error))
        parents = [parent.__name__ for parent in type(error).__mro__]
        found[statement] = [parents, str(error), getattr(error, "name", None)]
    else:
        found[statement] = None
print(json.dumps(found))
"""


def outcomes(statements, blocked=(), how=HIDE, path=SRC):
    """What each statement raises in a process without the blocked packages."""
    done = subprocess.run(
        [sys.executable, "-c", PROBE.format(blocked=list(blocked), how=how)],
        input=json.dumps(list(statements)),
        env={**os.environ, "PYTHONPATH": f"{path}{os.pathsep}{SRC}"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def ways_to(name):
    """Statements that ask for a name of the package, again and again."""
    return [
        f"import sawlog; sawlog.{name}",
        f"from sawlog import {name}",
        f"import sawlog; hasattr(sawlog, {name!r})",
    ]


def check_missing(outcome, package, needed_by):
    assert outcome is not None, needed_by
    parents, text, name = outcome
    assert parents[:2] == ["MissingPackageError", "SawlogError"], text
    assert "ImportError" in parents
    assert text == (
        f"{needed_by} needs the package '{package}', which is not installed. "
        f'Hint: pip install "sawlog[{package}]"'
    )
    assert name == package


def test_every_lazy_name_is_in_one_of_the_lists():
    lists = [NEED_JAX, NEED_TORCH, NEED_NEITHER]
    assert set().union(*lists) == {*sawlog.__all__, *sawlog._SUBMODULES}
    assert sum(map(len, lists)) == len({*sawlog.__all__, *sawlog._SUBMODULES})


@pytest.mark.parametrize("how", [HIDE, BLOCK], ids=["hidden", "blocked"])
def test_without_frameworks(how):
    statements = [way for name in NEED_JAX | NEED_TORCH | NEED_NEITHER for way in ways_to(name)]
    found = outcomes(statements, ["jax", "jaxlib", "torch"], how)
    for names, package in ((NEED_JAX, "jax"), (NEED_TORCH, "torch")):
        for name in names:
            for way in ways_to(name):
                check_missing(found[way], package, f"sawlog.{name}")
    assert not any(found[way] for name in NEED_NEITHER for way in ways_to(name))


def test_modules_without_frameworks():
    needs = {
        "import sawlog.jax": ("jax", "sawlog.jax"),
        "from sawlog.jax import log": ("jax", "sawlog.jax"),
        "import sawlog.jax._transforms.spool": ("jax", "sawlog.jax"),
        "import sawlog.loggers": ("jax", "sawlog.loggers"),
        "from sawlog.loggers import SaveLogger": ("jax", "sawlog.loggers"),
        "import sawlog.torch": ("torch", "sawlog.torch"),
        "from sawlog.torch import Run": ("torch", "sawlog.torch"),
    }
    fine = ["import sawlog.cli", "import sawlog.records", "import sawlog.testing"]
    found = outcomes([*needs, *fine], ["jax", "jaxlib", "torch"])
    for statement, (package, needed_by) in needs.items():
        check_missing(found[statement], package, needed_by)
    assert not any(found[statement] for statement in fine)


def test_a_log_outside_of_runs_says_how_to_get_jax():
    log = "import sawlog; sawlog.log({'x': 1.0})"
    parents, text, _ = outcomes([log], ["jax", "jaxlib", "torch"], BLOCK)[log]
    assert parents[0] == "ArgumentError"
    assert text.endswith('Programs of JAX need pip install "sawlog[jax]".')


def test_looking_around_without_frameworks():
    usable = sorted(NEED_NEITHER)
    statements = [
        f"import sawlog; assert set(dir(sawlog)) >= set({usable})",
        f"import sawlog; assert not set(dir(sawlog)) & set({sorted(NEED_JAX | NEED_TORCH)})",
        "import pydoc, sawlog; assert 'SawlogError' in pydoc.render_doc(sawlog)",
        "import inspect, sawlog; assert dict(inspect.getmembers(sawlog))['store']",
        "import sawlog; assert not hasattr(sawlog, 'no_such_name')",
    ]
    assert not any(outcomes(statements, ["jax", "torch"]).values())


@pytest.mark.parametrize(("there", "gone"), [("jax", "torch"), ("torch", "jax")])
def test_without_one_framework_the_other_is_listed(tmp_path, there, gone):
    names = {"jax": NEED_JAX, "torch": NEED_TORCH}
    for package in (there, "accelerate", "lightning", "transformers"):
        (tmp_path / f"{package}.py").touch()  # looked for, and not imported
    statements = [
        f"import sawlog; assert set(dir(sawlog)) >= set({sorted(names[there] | NEED_NEITHER)})",
        f"import sawlog; assert not set(dir(sawlog)) & set({sorted(names[gone])})",
    ]
    assert not any(outcomes(statements, [gone], path=tmp_path).values())


def test_without_the_packages_of_the_command_line(tmp_path):
    fine = [
        *(f"import sawlog.{name}" for name in ("cli", "influence", "inspect", "sinks", "store")),
        "from sawlog.cli import main; assert main(['--version']) == 0",
        "from sawlog.sinks import ConsoleSink, Dashboard, JsonlSink",
        f"from sawlog.sinks import JsonlSink; JsonlSink({str(tmp_path / 'run.jsonl')!r}).close()",
        "import sawlog; assert sawlog.records.Records({}) == {}",
        "from sawlog import _progress\nwith _progress.shown('x', 3) as bar: bar.step(1, 1)",
        "import contextlib, io; from sawlog.cli import main; text = io.StringIO()\n"
        "with contextlib.redirect_stderr(text): assert main(['ls', '.']) == 2\n"
        "assert text.getvalue() == ("
        "\"error: The command sawlog needs the package 'tyro', which is not installed.\\n\""
        "'hint: pip install \"sawlog[cli]\"\\n'), text.getvalue()",
        "import io; from sawlog._rich import Console; text = io.StringIO()\n"
        "Console(file=text, width=120).print({}); assert 'sawlog[cli]' in text.getvalue()",
    ]
    needs = {
        "from sawlog.sinks import ConsoleSink; ConsoleSink()": "The console",
        "from sawlog.sinks import Dashboard; Dashboard()": "The console",
        "from sawlog._rich import Table; Table()": "rich.Table",
    }
    found = outcomes([*fine, *needs], ["rich", "tyro"])
    assert {statement: found[statement] for statement in fine} == dict.fromkeys(fine)
    for statement, needed_by in needs.items():
        parents, text, name = found[statement]
        assert (parents[0], name) == ("MissingPackageError", "rich")
        assert text == (
            f"{needed_by} needs the package 'rich', which is not installed. "
            'Hint: pip install "sawlog[cli]"'
        )


def test_the_contracts_without_pytest():
    contracts = ("SinkContract", "StoreContract", "CaptureContract")
    found = outcomes([f"from sawlog.testing import {name}" for name in contracts], ["pytest"])
    for contract, (parents, text, name) in zip(contracts, found.values(), strict=True):
        assert (parents[0], name) == ("MissingPackageError", "pytest")
        assert text == (
            f"sawlog.testing.{contract} needs the package 'pytest', which is not installed. "
            "Hint: pip install pytest"
        )


def test_a_jax_without_jaxlib_says_so(tmp_path):
    (tmp_path / "jax").mkdir()
    says = "jax requires jaxlib to be installed."
    (tmp_path / "jax" / "__init__.py").write_text(f"raise ModuleNotFoundError({says!r})\n")
    found = outcomes(["import sawlog; sawlog.spool", "import sawlog.loggers"], path=tmp_path)
    for statement, needed_by in zip(found, ("sawlog.spool", "sawlog.loggers"), strict=True):
        parents, text, _ = found[statement]
        assert parents[0] == "MissingPackageError"
        assert text == (
            f"{needed_by} needs the package 'jax', which is installed, but cannot be imported: "
            f'{says} Hint: pip install "sawlog[jax]"'
        )


def test_a_jax_that_does_not_fit_its_jaxlib_speaks_for_itself(tmp_path):
    says = "jaxlib version 0.1 is incompatible with jax version 0.12"
    (tmp_path / "jax.py").write_text(f"raise RuntimeError({says!r})\n")
    (outcome,) = outcomes(["import sawlog; sawlog.spool"], path=tmp_path).values()
    assert outcome[:2] == [["RuntimeError", "Exception", "BaseException", "object"], says]

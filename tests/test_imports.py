"""Importing sawlog does nothing: no optional package, file, socket, process, thread or output."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import sawlog
from tests.left_out import LEFT_OUT

SRC = Path(__file__).parents[1] / "src"

PUBLIC = {"log", "logdict", "register_rule", "spool", "strip", "tap"}

# Neither loaded nor even looked for. What is only tried (`try: import torch`) counts as well.
FORBIDDEN = [
    "datasets",
    "equinox",
    "flax",
    "jax",
    "jaxlib",
    "lightning",
    "mlflow",
    "neptune",
    "optax",
    "pyarrow",
    "pytorch_lightning",
    "rich",
    "tensorboard",
    "torch",
    "trackio",
    "transformers",
    "tyro",
    "wandb",
]

# Runs in a fresh interpreter and prints what the import of argv[1] did, one string for each deed.
PROBE = """
import importlib, json, os, sys, threading

module, forbidden = sys.argv[1], set(sys.argv[2:])
deeds = []
PREFIXES = ("socket.", "subprocess.", "os.exec", "os.fork", "os.posix_spawn", "os.system")
CHANGES = ("os.link", "os.mkdir", "os.rename", "os.symlink", "os.truncate", "sqlite3.connect")

class Watch:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in forbidden:
            deeds.append(f"import {name}")

def audit(event, args):
    if not watching:
        return
    if event == "open" and args[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
        deeds.append(f"write {args[0]}")
    elif event.startswith(PREFIXES) or event in CHANGES:
        deeds.append(f"{event} {args}")

watching = True
sys.meta_path.insert(0, Watch())
sys.addaudithook(audit)
importlib.import_module(module)
watching = False
deeds += [f"thread {thread.name}" for thread in threading.enumerate()[1:]]
deeds += [f"file {folder}/{name}" for folder in (".", "~", os.environ["TMPDIR"])
          for name in os.listdir(os.path.expanduser(folder))]
print(json.dumps(deeds))
"""


def deeds_of_import(module: str, folder: Path, path: Path = SRC) -> list[str]:
    """Import `module` from `path` in a fresh process with nothing in sight; return what it did."""
    places = {name: folder / name.lower() for name in ("CWD", "HOME", "TMPDIR")}
    for place in places.values():
        place.mkdir()
    cwd = places.pop("CWD")
    env = {key: value for key, value in os.environ.items() if not key.startswith("XDG_")}
    env |= {key: str(place) for key, place in places.items()}
    env |= {"PYTHONPATH": str(path), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", PROBE, module, *FORBIDDEN],
        cwd=cwd,
        env=env,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    *printed, deeds = done.stdout.splitlines()
    return [f"print {line}" for line in printed] + json.loads(deeds)


def test_import_does_nothing(tmp_path):
    assert deeds_of_import("sawlog", tmp_path) == []


@pytest.mark.parametrize(
    ("source", "deed"),
    [
        ("import wandb", "import wandb"),
        ("from wandb.sdk import run", "import wandb"),
        ("__import__('importlib').import_module('wandb')", "import wandb"),
        ("try:\n    import neptune\nexcept ImportError:\n    pass", "import neptune"),
        ("print('hello')", "print hello"),
        ("open('here.txt', 'w').close()", "write here.txt"),
        ("import tempfile; tempfile.mkdtemp()", "os.mkdir"),
        ("from pathlib import Path; (Path.home() / '.greedy').mkdir()", "os.mkdir"),
        ("from pathlib import Path; (Path.home() / '.greedy').mkdir()", "file ~/.greedy"),
        ("import socket; socket.socket().close()", "socket."),
        ("import subprocess, sys; subprocess.run([sys.executable, '-V'])", "subprocess.Popen"),
        (
            "import threading, time; threading.Thread(target=time.sleep, args=(1,)).start()",
            "thread",
        ),
    ],
)
def test_the_guard_can_fail(tmp_path, source, deed):
    fakes = tmp_path / "fakes"
    (fakes / "wandb" / "sdk").mkdir(parents=True)
    (fakes / "wandb" / "__init__.py").touch()
    (fakes / "neptune.py").touch()
    (fakes / "wandb" / "sdk" / "__init__.py").write_text("run = None\n")
    (fakes / "greedy.py").write_text(source + "\n")
    deeds = deeds_of_import("greedy", tmp_path, path=fakes)
    assert any(found.startswith(deed) for found in deeds), deeds


def test_the_guard_accepts_an_innocent_module(tmp_path):
    (tmp_path / "innocent.py").write_text("import math, socket, subprocess, tempfile\n")
    assert deeds_of_import("innocent", tmp_path, path=tmp_path) == []


def test_every_public_name_resolves_and_is_listed():
    assert set(sawlog.__all__) >= PUBLIC
    assert len(set(sawlog.__all__)) == len(sawlog.__all__)
    missing = {
        home
        for home, needs in sawlog._NEEDS.items()
        if not {package for package, _ in needs}.isdisjoint(LEFT_OUT)
    }
    usable = [name for name in sawlog.__all__ if sawlog._home(name) not in missing]
    assert set(usable) >= PUBLIC
    assert set(dir(sawlog)) >= set(usable)
    for name in usable:
        assert getattr(sawlog, name) is not None, name


@pytest.mark.skipif(bool(LEFT_OUT), reason=f"needs {', '.join(LEFT_OUT)}, which is left out")
def test_star_import_gives_the_public_names():
    namespace: dict[str, object] = {}
    exec("from sawlog import *", namespace)
    assert set(namespace) - {"__builtins__"} == set(sawlog.__all__)


def test_unknown_name_says_what_there_is():
    with pytest.raises(AttributeError) as caught:
        sawlog.spol  # noqa: B018
    message = str(caught.value)
    assert re.search(r"sawlog\b.*\bspol\b", message, re.DOTALL)
    assert re.search(r"\bspool\b", message), "it should name what the user may have meant"
    assert not hasattr(sawlog, "no_such_name")

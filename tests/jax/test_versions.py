"""An unsupported JAX raises one error at import, which names the supported versions."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import jax
import pytest

from sawlog.errors import UnsupportedJaxError
from sawlog.jax import _compat, _versions

ROOT = Path(__file__).parents[2]


PROBE = """
import json, os, sys
import jax

for before in json.loads(sys.argv[1]):
    if os.fork() == 0:  # so that JAX is imported once for all of them
        exec(before)
        try:
            import sawlog.jax
        except ImportError as error:
            said = f"{type(error).__name__} {error}"
        else:
            said = "imported"
        print(json.dumps(said), flush=True)
        os._exit(0)
    os.wait()
"""


def imported(befores: list[str]) -> list[str]:
    """Import sawlog.jax in new processes after each of these; return what they print."""
    command = [sys.executable, "-W", "ignore", "-c", PROBE, json.dumps(befores)]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_the_installed_one_fits() -> None:
    assert _versions.OLDEST <= jax.__version_info__ < _versions.UNTRIED
    _versions.check()


@pytest.mark.parametrize("version", [(0, 4, 38), (0, 10, 1), (0, 13, 0), (1, 0, 0)])
def test_others_are_refused(version: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jax, "__version_info__", version)
    monkeypatch.setattr(jax, "__version__", ".".join(map(str, version)))
    with pytest.raises(UnsupportedJaxError) as caught:
        _versions.check()
    text = str(caught.value)
    assert jax.__version__ in text
    assert "0.10.2" in text
    assert "0.13" in text
    assert 'pip install "jax>=0.10.2,<0.13"' in text
    assert isinstance(caught.value, ImportError)


def test_a_newer_one_can_be_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jax, "__version_info__", (0, 13, 0))
    monkeypatch.setenv("SAWLOG_ANY_JAX", "1")
    _versions.check()
    monkeypatch.setattr(jax, "__version_info__", (0, 9, 0))
    with pytest.raises(UnsupportedJaxError):
        _versions.check()


GONE = {
    "_scan_known_hoisting": "import jax._src.lax.control_flow.loops as m; "
    "del m._scan_known_hoisting",
    "emit_python_callback": "import jax._src.callback as m; del m.emit_python_callback",
    "custom_batching": "import sys; del jax._src.custom_batching; "
    "sys.modules['jax._src.custom_batching'] = None",
    "batching rule of while_loop": "import jax._src.interpreters.batching as m; "
    "from jax.extend.core.primitives import while_p; del m.fancy_primitive_batchers[while_p]",
}


@pytest.mark.thorough
def test_private_names_are_looked_for_at_import() -> None:
    *without, with_all = imported([*GONE.values(), ""])
    assert with_all == "imported"
    for named, said in zip(GONE, without, strict=True):
        assert said.startswith("UnsupportedJaxError")
        assert named in said
        assert "0.10.2" in said


def test_every_private_name_that_is_used_is_looked_for() -> None:
    folder = Path(_compat.__file__).parent
    text = "\n".join(file.read_text() for file in folder.glob("*.py"))
    used = set(re.findall(r"\bprivate\.([a-z]\w*)\.(\w+)", text))
    assert ("core", "typeof") in used
    listed = {
        (module.__name__.rpartition(".")[2], name)
        for module, names in _compat.private.USED.items()
        for name in names.split()
    }
    assert used <= listed, used - listed


def test_pyproject_says_the_same() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    (needed,) = project["project"]["optional-dependencies"]["jax"]
    oldest, untried = (".".join(map(str, v)) for v in (_versions.OLDEST, _versions.UNTRIED))
    assert needed == f"jax>={oldest},<{untried}"

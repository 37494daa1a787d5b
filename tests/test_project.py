"""The project as a whole: nothing of one machine in its files, and the two commands it promises."""

import os
import re
import subprocess
import tomllib
from pathlib import Path

import pytest

import sawlog

ROOT = Path(__file__).parents[1]

# A path of somebody's machine, or a package registry: a clone must work anywhere.
# The patterns are spelled so that they do not match this file.
MACHINE = re.compile(
    r"(?<![\w.~$})-])/(?:root|work|home/\w+|Users/\w+)(?:/|\b(?![\w.-]))"
    r"|python[h]osted\.|\bpypi\.[o]rg|\banaconda\.[o]rg|\bdownload\.pytorch\.[o]rg"
)


def tracked_files() -> list[Path]:
    """Files under version control, or about to be."""
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [path for name in names.split("\0") if name and (path := ROOT / name).is_file()]


def text_of(path: Path) -> str:
    """The text of a file; of a binary one, nothing."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return ""


def test_no_machine_paths_or_registries_in_tracked_files():
    texts = {path.relative_to(ROOT).as_posix(): text_of(path) for path in tracked_files()}
    assert {"README.md", "pyproject.toml", "src/sawlog/__init__.py"} <= set(texts)
    found = {
        f"{name}:{number}": line
        for name, text in texts.items()
        if MACHINE.search(text)
        for number, line in enumerate(text.splitlines(), 1)
        if MACHINE.search(line)
    }
    assert found == {}


@pytest.mark.parametrize("folder", ["root", "work", "home/ann", "Users/ann"])
@pytest.mark.parametrize("template", ["/{}/x.py", "see `/{}`", "path=/{}/data", '"/{}"'])
def test_the_scan_finds_machine_paths(folder, template):
    assert MACHINE.search(template.format(folder))


@pytest.mark.parametrize("host", ["pypi.{}", "files.python{}.org", "download.pytorch.{}"])
def test_the_scan_finds_registries(host):
    assert MACHINE.search("https://" + host.format("hosted" if "python{" in host else "org"))


@pytest.mark.parametrize(
    "line",
    ["src/work/x", "$HOME/work", "a/root", "/home/", "/tmp/x", "~/work", "/worker", "and/or"],
)
def test_the_scan_leaves_other_text_alone(line):
    assert not MACHINE.search(line)


def test_one_version():
    settings = tomllib.loads(text_of(ROOT / "pyproject.toml"))
    assert settings["project"]["dynamic"] == ["version"]
    assert "version" not in settings["project"]
    source = text_of(ROOT / settings["tool"]["hatch"]["version"]["path"])
    found = re.findall(r'^__version__ = "([^"]+)"$', source, re.MULTILINE)
    assert found == [sawlog.__version__]


def test_readme_names_the_two_commands():
    readme = text_of(ROOT / "README.md")
    assert "make demo" in readme
    assert "make test" in readme


def test_makefile_has_the_targets():
    makefile = text_of(ROOT / "Makefile")
    targets = set(re.findall(r"^([\w-]+):", makefile, re.MULTILINE))
    expected = {"demo", "docs", "test", "test-browser", "test-long", "test-newest", "test-thorough"}
    expected |= {"mutants", "fuzz", "bench", "lint"}
    expected |= {"clean"}
    assert expected <= targets
    assert set(re.findall(r'echo "make ([\w-]+) ', makefile)) == expected, "make help"


def test_tests_for_the_newest_jax_exist():
    makefile = text_of(ROOT / "Makefile").replace("\\\n", "")
    (listed,) = re.findall(r"^NEWEST_TESTS := (.*)$", makefile, re.MULTILINE)
    patterns = re.sub(r"\$\(wildcard (\S+)\)", r"\1", listed).split()
    assert {"tests/jax", "src/sawlog/jax", "tests/test_docs.py"} <= set(patterns)
    assert [pattern for pattern in patterns if not list(ROOT.glob(pattern))] == []


def test_ci_runs_all_sets_of_tests(tmp_path):
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    fake = tmp_path / "make"
    fake.write_text(f'#!/bin/sh\necho "$@" >>{tmp_path}/calls\ntest "$*" != "$FAILS"\n')
    fake.chmod(0o755)
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    for fails, calls in {
        "": ["test", "docs", "test-newest", "test-long"],
        "test": ["test"],
        "docs": ["test", "docs"],
        "test-newest": ["test", "docs", "test-newest"],
        "test-long": ["test", "docs", "test-newest", "test-long"],
    }.items():
        (tmp_path / "calls").unlink(missing_ok=True)
        done = subprocess.run([script], env={**os.environ, "PATH": path, "FAILS": fails})
        assert (done.returncode != 0) == bool(fails)
        assert text_of(tmp_path / "calls").split() == calls


@pytest.mark.parametrize("script", [".ci/run", "tools/newest_python.sh", "tools/in_venv.sh"])
def test_shell_scripts_are_sound(script):
    assert os.access(ROOT / script, os.X_OK)
    assert "\nset -euo pipefail\n" in text_of(ROOT / script)
    subprocess.run(["bash", "-n", ROOT / script], check=True)

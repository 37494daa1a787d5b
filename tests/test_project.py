"""The project as a whole: nothing of one machine in its files, and the two commands it promises."""

import os
import re
import shutil
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


MOST_LINES = 400


def test_no_file_is_too_long_to_read():
    files = [path for path in tracked_files() if path.suffix == ".py"]
    assert len(files) > 1000
    long = [path.name for path in files if len(text_of(path).splitlines()) > MOST_LINES]
    assert long == []


def test_readme_names_the_two_commands():
    readme = text_of(ROOT / "README.md")
    assert len(readme.splitlines()) <= 130
    assert "make demo" in readme
    assert "make test" in readme


def test_makefile_has_the_targets():
    makefile = text_of(ROOT / "Makefile")
    targets = set(re.findall(r"^([\w-]+):", makefile, re.MULTILINE))
    expected = {"demo", "docs", "test", "test-thorough"}
    expected |= {"test-browser", "test-examples", "test-long", "test-newest"}
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
    everything = ["lint", "test", "docs", "test-examples", "test-newest", "test-browser"]
    always = everything[:-1]
    for browser in (True, False):
        tools = with_fake_tools(tmp_path / str(browser), browser)
        for fails, calls in {
            "": everything if browser else always,
            **{name: always[: place + 1] for place, name in enumerate(always)},
            "test-browser": everything if browser else always,
        }.items():
            (tools / "calls").unlink(missing_ok=True)
            env = {"PATH": str(tools), "FAILS": fails}
            done = subprocess.run([script], env=env, capture_output=True, text=True)
            assert (done.returncode != 0) == (fails in calls)
            assert text_of(tools / "calls").split() == calls
            assert ("NOT RUN: make test-browser" in done.stderr) == (
                not browser and fails not in calls
            )


def with_fake_tools(folder, browser):
    """A PATH with a `make` that notes its calls, a `chromium` if asked for, and little else."""
    folder.mkdir()
    for name in ("bash", "dirname", "env", "id", "sh"):
        (folder / name).symlink_to(shutil.which(name))
    make = f'#!/bin/sh\necho "$@" >>{folder}/calls\ntest "$*" != "$FAILS"\n'
    for name in ("make", "chromium") if browser else ("make",):
        (folder / name).write_text(make)
        (folder / name).chmod(0o755)
    return folder

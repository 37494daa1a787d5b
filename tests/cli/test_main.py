"""Exit codes, messages, streams: what holds for every command."""

import os
import pty
import re
import resource
import select
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import sawlog
import sawlog.store
from sawlog.cli import _ls
from sawlog.cli._commands import COMMANDS
from tests.cli.stores import change_value, make_run, segments

ENV = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "FORCE_COLOR", "COLUMNS")}
ENV |= {"PYTHONPATH": str(Path(__file__).parents[2] / "src"), "TERM": "xterm-256color"}
ENV |= {"PYTHONWARNINGS": "error", "PYTHONIOENCODING": "utf-8"}
COMMAND = [sys.executable, "-m", "sawlog"]


def test_help_lists_the_commands_and_the_exit_codes(sawlog_):
    done = sawlog_("--help")
    assert done.code == 0
    assert done.err == ""
    for word in (*COMMANDS, "exit codes", "damaged", "130"):
        assert word in done.out, word


@pytest.mark.parametrize("command", COMMANDS)
def test_the_table_of_commands_has_the_summaries_of_the_modules(command):
    entry = COMMANDS[command]
    assert entry.arguments_class().__doc__.partition("\n")[0] == entry.summary
    assert callable(entry.load().run)


def test_version(sawlog_):
    assert sawlog_("--version") == (0, f"sawlog {sawlog.__version__}\n", "")


@pytest.mark.parametrize(
    ("args", "error"),
    [
        (("tail", "x", "-n", "many"), "-n/--lines: 'many' is not an integer, such as 10."),
        (("tail", "x", "--lines", "1.5"), "-n/--lines: '1.5' is not an integer, such as 10."),
        (("view", "--port", "web"), "--port: 'web' is not an integer, such as 10."),
        (("report", "x", "--points", "1e3"), "--points: '1e3' is not an integer, such as 10."),
        (
            ("attribute", "x", "y", "--damping", "small"),
            "--damping: 'small' is not a number, such as 10, 0.1 or 1e-3.",
        ),
        (
            ("completion", "tcsh"),
            "shell: 'tcsh' is not a choice. The choices are 'bash', 'zsh', 'fish'.",
        ),
        (("tail", "x", "-n"), "-n/--lines needs a value."),
        (("show", "--json"), "sawlog show needs PATH: The folder of the store."),
        (("attribute", "x", "--queries", "y"), "QUERIES is missing."),
        (("ls", "x", "--worse", "--bad"), "These arguments are not known here: --worse, --bad."),
    ],
)
def test_wrong_arguments_are_one_sentence_and_a_hint(sawlog_, args, error):
    done = sawlog_(*args)
    hint = f"hint: sawlog {args[0]} --help explains all arguments, with examples."
    assert (done.code, done.out) == (2, "")
    assert done.err.splitlines() == [f"error: {error}", hint]


def test_a_misspelled_option_names_the_near_ones(sawlog_):
    for args, near in (
        (("ls", "x", "--jsn"), "--json"),
        (("tail", "x", "--folow", "--lins"), "--lines or --follow"),
    ):
        error, hint = sawlog_(*args).err.splitlines()
        assert error.startswith("error: These arguments are not known here: --")
        assert set(re.findall("--[a-z]+", hint.partition("?")[0])) == set(near.split(" or "))
        assert hint.startswith("hint: did you mean --")
    assert "A command is missing: ls, show, " in sawlog_().err


@pytest.mark.parametrize(
    "args",
    [
        (),
        ("shw", "x"),
        ("ls", "--jsn"),
        ("show",),
        ("verify",),
        ("compact",),
        ("export", "x"),
        ("show", "x", "--limit", "many"),
    ],
)
def test_bad_usage_is_2_on_standard_error(sawlog_, args):
    done = sawlog_(*args)
    assert done.code == 2
    assert done.out == ""
    assert done.err


@pytest.mark.parametrize("command", ["show", "verify", "compact", "repair"])
def test_a_folder_that_is_no_store_is_2(sawlog_, tmp_path, command):
    assert sawlog_(command, tmp_path).code == 2


def test_a_newer_store_is_2(sawlog_, run):
    from sawlog.store._format._json_files import to_json

    said = {"format": "sawlog-store", "version": 99, "id": "0" * 32}
    (run / "store.json").write_bytes(to_json(said))
    done = sawlog_("show", run)
    assert done.code == 2
    assert "99" in done.err


def test_an_error_of_the_system_is_2_without_a_traceback(sawlog_, run, monkeypatch):
    def refuse(*_):
        raise PermissionError(13, "Permission denied", "some/file")

    monkeypatch.setattr(sawlog.store, "verify", refuse)
    done = sawlog_("verify", run)
    hint = "hint: check the path, and who may read and write there."
    assert done == (2, "", f"error: some/file: Permission denied.\n{hint}\n")


def test_interrupted_is_130(sawlog_, tmp_path, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(_ls, "find_stores", interrupt)
    assert sawlog_("ls", tmp_path) == (130, "", "interrupted\n")


def test_nothing_but_escapes_of_odd_names_reach_the_screen(sawlog_, tmp_path):
    with sawlog.store.create(tmp_path / "odd") as writer:
        writer.log({"a\x1b[31m\nb": 1.0, "[red]损失[/red] :smile:": 2.0}, step=0)
    done = sawlog_("show", tmp_path / "odd")
    assert done.code == 0
    assert "\x1b" not in done.out
    assert r"a\x1b[31m\nb" in done.out
    assert "[red]损失[/red] :smile:" in done.out
    names = [
        series["name"] for series in sawlog_("show", tmp_path / "odd", "--json").json["series"]
    ]
    assert names == ["a\x1b[31m\nb", "[red]损失[/red] :smile:"]


# ---- in processes of their own


def sawlog_process(*args: object, **env: str) -> subprocess.CompletedProcess:
    command = [*COMMAND, *map(str, args)]
    return subprocess.run(command, env=ENV | env, capture_output=True, text=True, timeout=300)


def test_starting_is_quick_and_loads_no_framework():
    code = (
        "import sys; from sawlog.cli import main; main(['--help']);"
        "print([m for m in ('jax', 'torch', 'pandas', 'pyarrow', 'numpy') if m in sys.modules])"
    )
    before = time_of_children()
    done = subprocess.run([sys.executable, "-c", code], env=ENV, capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "[]", done.stderr
    assert time_of_children() - before < 3  # a fraction of a second, really


def time_of_children() -> float:
    """Seconds that ended processes kept a core busy: other programs do not count."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def test_show_loads_no_framework(run):
    code = (
        f"import sys; from sawlog.cli import main; main(['show', {str(run)!r}]);"
        "print([m for m in ('jax', 'torch', 'pandas', 'pyarrow') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], env=ENV, capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "[]", done.stderr


def test_piped_output_is_plain_and_errors_stay_apart(run):
    done = sawlog_process("verify", run, run.parent / "nowhere")
    assert done.returncode == 2
    assert "ok" in done.stdout
    assert "\x1b" not in done.stdout + done.stderr
    assert done.stderr.startswith("error: There is no store")


def test_ascii_terminals_get_ascii(run):
    done = sawlog_process("show", run, PYTHONIOENCODING="ascii")
    assert done.returncode == 0, done.stderr
    assert done.stdout.isascii()
    assert "#" in done.stdout


def test_a_reader_that_goes_away_is_no_error(tmp_path):
    with sawlog.store.create(tmp_path / "many") as writer:
        writer.log({f"name{i}" * 50: float(i) for i in range(400)}, step=0)
    show = [*COMMAND, "show", "--json", str(tmp_path / "many")]
    process = subprocess.Popen(show, env=ENV, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout.readline() == b"{\n"
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait(timeout=300) == 141


@pytest.mark.thorough
def test_a_table_whose_reader_goes_away_is_no_error(tmp_path):
    with sawlog.store.create(tmp_path / "many") as writer:
        writer.log({f"name{i}" * 50: float(i) for i in range(400)}, step=0)
    show = [*COMMAND, "show", "--limit", "0", str(tmp_path / "many")]
    process = subprocess.Popen(show, env=ENV, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait(timeout=300) == 141


# ---- at a terminal


def at_terminal(*args: object, **env: str) -> tuple[int, str]:
    """Run a command under a pseudo-terminal; returns its exit code and all that it showed."""
    master, slave = pty.openpty()
    command = [*COMMAND, *map(str, args)]
    own = ENV | {"COLUMNS": "90"} | env
    process = subprocess.Popen(command, env=own, stdin=slave, stdout=slave, stderr=slave)
    os.close(slave)
    shown = b""
    while select.select([master], [], [], 300)[0]:
        try:
            data = os.read(master, 65536)
        except OSError:  # the other end was closed
            break
        if not data:
            break
        shown += data
    os.close(master)
    return process.wait(timeout=300), shown.decode()


def test_a_terminal_gets_colours_and_progress(run):
    change_value(segments(run)[0], "loss")
    code, shown = at_terminal("verify", run)
    assert code == 1
    assert re.search(r"\x1b\[[0-9;]*m", shown)
    assert "verifying run" in shown
    assert "100%" in shown


def test_no_color_is_respected(run):
    code, shown = at_terminal("verify", run, NO_COLOR="1")
    assert code == 0
    assert not re.search(r"\x1b\[[0-9;]*m", shown)
    assert "verifying run" in shown


@pytest.mark.parametrize(
    "args",
    [
        ("show", "--help"),
        pytest.param(("show",), marks=pytest.mark.thorough),
        pytest.param(("--help",), marks=pytest.mark.thorough),
    ],
)
def test_no_color_is_respected_by_help_and_usage(args):
    code, shown = at_terminal(*args, NO_COLOR="1")
    assert code == (0 if "--help" in args else 2)
    assert "PATH" in shown or "exit codes" in shown
    assert "\x1b" not in shown


@pytest.mark.thorough
def test_json_at_a_terminal_has_no_colours_on_standard_output(tmp_path):
    make_run(tmp_path / "a")
    code, shown = at_terminal("ls", tmp_path, "--json")
    assert code == 0
    assert '"state": "closed"' in shown


def test_the_terminal_that_tests_use_is_a_terminal():
    """Were it none, the tests of NO_COLOR would pass on anything."""
    _, shown = at_terminal("show", "--help")
    assert "\x1b" in shown


def test_memory_of_show_does_not_grow_with_the_table(tmp_path):
    with sawlog.store.create(tmp_path / "big", segment_bytes=4 << 20) as writer:
        for part in range(20):
            ids = np.arange(1000) + 1000 * part
            writer.append(ids, {"grad": np.ones((1000, 1024), np.float32)})
    code = (
        "import resource; from sawlog.cli import main; import sawlog.cli._show;"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss;"
        f"assert main(['show', {str(tmp_path / 'big')!r}]) == 0;"
        "print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)"
    )
    done = subprocess.run([sys.executable, "-c", code], env=ENV, capture_output=True, text=True)
    assert "20,000 rows" in done.stdout, done.stderr
    assert int(done.stdout.splitlines()[-1]) < 40  # MB, of 82

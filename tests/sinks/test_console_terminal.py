"""The console at a real (pseudo-)terminal: what a user sees, read by a terminal emulator."""

import re

import pytest

from ._terminal import run

TRAINING = """
import logging, time, numpy as np
logging.basicConfig(format="%(levelname)s: %(message)s")
from sawlog.records import Entries, Records
from sawlog.sinks import ConsoleSink, Dashboard

with Dashboard("mnist", total=40, refresh=20) as board:
    sinks = [ConsoleSink(f"seed-{seed}", dashboard=board) for seed in range(3)]
    print("before")
    for step in range(40):
        for seed, sink in enumerate(sinks):
            values = {"loss": 1 / (1 + step) + seed, "accuracy": step / 40, "grad": float("nan")}
            values |= {f"layer/{i}/norm": float(i) for i in range(8)}
            entries = {
                name: Entries(np.array([value]), {"step": np.array([step])})
                for name, value in values.items()
            }
            sink.write(Records(entries))
        if step % 10 == 0:
            print("\\x1b[32mstep\\x1b[0m", step, "x" * 90)
        print(".", end="", flush=True)
        if step == 15:
            logging.warning("step %s", step)
        time.sleep(0.02)
        EXTRA
    print("!")
    for sink in sinks:
        sink.close()
print("after")
"""


def table_of(lines):
    """The first cells of each row of the one table on the screen."""
    (head,) = [number for number, line in enumerate(lines) if line.startswith("name ")]
    rows = {}
    for line in lines[head + 1 :]:
        if not re.match(r"\S+ {2,}", line):
            break
        name, *cells = re.split(r" {2,}", line)
        rows[name] = cells
    return rows


def test_a_training():
    seen = run(TRAINING.replace("EXTRA", "pass"))
    assert seen.code == 0, seen.text
    lines = seen.text.splitlines()
    # What the program prints is there, whole and in order, above the table and below it.
    printed = [line for line in lines if re.match(r"before|after|\.*step|x+$|\.+!", line)]
    prefix = [f"{'.' * (10 if step else 0)}step {step} " for step in (0, 10, 20, 30)]
    joined = "\n".join(printed)
    for line in prefix:
        assert line in joined
    assert joined.replace("\n", "").count("x") == 4 * 90
    assert (lines[0], lines[-1]) == ("before", "after")
    assert lines.count("WARNING: step 15") == 1
    # One table, which is the last thing but what came after.
    assert sum(line.startswith("── mnist  3 runs finished ──") for line in lines) == 1
    rows = table_of(lines)
    assert set(rows) == {"loss", "accuracy", "grad", *(f"layer/{i}/norm" for i in range(8))}
    assert rows["loss"][:3] == ["1.025", "± 0.82", "0.02500 .. 2.025"]
    assert rows["accuracy"][:2] == ["0.9750", "± 0"]
    assert rows["grad"][0] == "nan"
    assert "█" in rows["loss"][-1]
    assert any(re.match(r"step 39 / 40 .* 100%$", line) for line in lines)
    # While it ran, there was one table on the screen at any time.
    pictures = seen.pictures()
    assert len(pictures) > 4
    for picture in pictures:
        assert sum(line.startswith("name ") for line in picture) <= 1
        assert sum(line.startswith("── mnist") for line in picture) <= 1
    during = "\n".join(pictures[len(pictures) // 2])
    assert "3 runs running" in during
    assert re.search(
        r"step \d+ / 40  \S+ steps/s each  elapsed 0:0\d:\d\d  remaining 0:0\d:\d\d", during
    )
    screen = seen.screen()
    assert not screen.cursor.hidden
    assert b"\x1b[?1049h" not in seen.sent  # the history of the terminal is not taken away
    (at,) = [number for number, line in enumerate(screen.display) if line.startswith("grad ")]
    assert screen.buffer[at][screen.display[at].index("nan")].bg == "red"
    assert screen.buffer[at][screen.display[at].index("nan") - 2].bg == "default"


def test_a_program_that_fails():
    seen = run(TRAINING.replace("EXTRA", "if step == 20: raise ValueError('the end')"))
    assert seen.code == 1
    assert not seen.screen().cursor.hidden
    assert seen.text.rstrip().splitlines().count("ValueError: the end") == 1
    assert sum(line.startswith("name ") for line in seen.lines) == 1
    assert "── mnist  3 runs failed (seed-0, seed-1, seed-2) ──" in seen.text
    assert "after" not in seen.text


@pytest.mark.thorough
def test_a_program_that_is_killed():
    """Nothing can be tidied up then, so nothing may be out of order before."""
    killed = "if step == 20: import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    seen = run(TRAINING.replace("EXTRA", killed))
    assert seen.code == -9
    assert not seen.screen().cursor.hidden
    assert "3 runs running" in seen.text


@pytest.mark.parametrize(
    ("columns", "rows"),
    [
        pytest.param(40, 30, marks=pytest.mark.thorough),
        (100, 10),
        pytest.param(20, 5, marks=pytest.mark.thorough),
    ],
)
def test_small_terminals(columns, rows):
    seen = run(TRAINING.replace("EXTRA", "pass"), columns=columns, rows=rows)
    assert seen.code == 0, seen.text
    lines = seen.text.splitlines()
    assert sum(line.startswith("── mnist") for line in lines) == 1
    assert lines[-1] == "after"
    for picture in seen.pictures():
        assert sum(line.startswith("── mnist") for line in picture) <= 1
    if rows == 30:
        assert set(table_of(lines)) >= {"loss", "accuracy", "layer/7/norm"}
        assert table_of(lines)["loss"][:2] == ["1.025", "± 0.82"]
    if columns == 100:
        assert set(table_of(lines)) <= {"loss", "accuracy", "grad", "layer/0/norm", "layer/1/norm"}
        assert any(re.match(r"… \d more names not shown", line) for line in lines)


PRINTING = """
import os, sys, threading, time, numpy as np
from sawlog.records import Entries, Records
from sawlog.sinks import ConsoleSink

turns = 0

def talk(name):
    for i in range(40):
        while turns < i // 8:  # until some dashboards have come and gone
            time.sleep(0.001)
        sys.stdout.write(f"<{name} {i}>\\n")
        sys.stderr.write(f"<{name} {i} err>\\n")
        print(end="")
        time.sleep(0.002)

threads = [threading.Thread(target=talk, args=(name,)) for name in "abc"]
for thread in threads:
    thread.start()
while any(thread.is_alive() for thread in threads):
    with ConsoleSink(f"run-{turns}", refresh=200) as sink, ConsoleSink("other", refresh=200):
        sink.write(Records({"x": Entries(np.ones(1))}))
        time.sleep(0.01)
        if turns == 1 and os.fork() == 0:
            print("<child>")
            os._exit(0 if sys.stdout is sys.__stdout__ else 1)
        turns += 1
print("<status", os.waitstatus_to_exitcode(os.wait()[1]), turns, ">")
"""


def test_threads_that_print_while_dashboards_come_and_go():
    """Nothing is lost, cut or waits forever."""
    seen = run(PRINTING, columns=60, rows=40)
    assert seen.code == 0, seen.text
    expected = [f"<{name} {i}{end}>" for name in "abc" for i in range(40) for end in ("", " err")]
    for line in expected:
        assert seen.text.count(line) == 1, line
    (status,) = re.findall(r"<status (\d+) (\d+) >", seen.text)
    assert status[0] == "0"
    assert sum(line.startswith("── sawlog  run-") for line in seen.lines) >= int(status[1])
    assert not seen.screen().cursor.hidden


JAX = """
import jax, jax.numpy as jnp, sawlog
from sawlog.loggers import ConsoleLogger

def train(key):
    def step(w, i):
        loss, grad = jax.value_and_grad(lambda w: ((w - 1) ** 2).mean())(w)
        sawlog.log({"loss": loss, "grad": grad, "params": {"w": w}}, step=i)
        return w - 0.3 * grad, None
    return jax.lax.scan(step, jax.random.normal(key, (4,)), jnp.arange(200))[0]

with ConsoleLogger("8 seeds", total=200, refresh=20) as logger:
    def one(key):
        return logger.tap(train, logger.init(key), buffer=20)(key)
    keys = jax.vmap(jax.random.key)(jnp.arange(8))
    print("compiling")
    jax.block_until_ready(jax.jit(jax.vmap(one))(keys))
    print("trained")
    END
losses = sawlog.spool(jax.vmap(train))(keys)[1]["loss"][-1]
print(f"mean {losses.mean():#.4g}")
"""


@pytest.mark.thorough
@pytest.mark.parametrize("fails", [False, True])
def test_eight_seeds_in_one_program(fails):
    seen = run(JAX.replace("END", "raise ValueError('the end')" if fails else "pass"), rows=40)
    lines = seen.text.splitlines()
    assert seen.code == int(fails), seen.text
    assert not seen.screen().cursor.hidden
    rows = table_of(lines)
    assert set(rows) == {"loss", "grad", "params/w"}
    assert {"compiling", "trained"} <= set(lines)
    assert any(re.match(r"step 199 / 200 .* 100%$", line) for line in lines)
    assert "[4]" in rows["grad"]
    if fails:
        assert "── 8 seeds  8 runs failed (seed-0, seed-1, seed-2, +5) ──" in seen.text
        assert "ValueError: the end" in lines
    else:
        assert "── 8 seeds  8 runs finished ──" in seen.text
        assert lines[-1].startswith("mean ")
        assert float(rows["loss"][0]) == pytest.approx(float(lines[-1].split()[1]), rel=1e-3)

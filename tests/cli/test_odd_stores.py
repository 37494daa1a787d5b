"""Every command on stores that are valid and odd: an answer, or an error that explains."""

import ml_dtypes
import numpy as np
import pytest

import sawlog.store
from sawlog.curvature import KINDS, Sampled
from sawlog.curvature._damping import DENSE, FACTORED
from sawlog.curvature._layer import Diagonal, FullMatrix, Kronecker

ROWS = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)

#: Columns of four rows, and the columns that are no real numbers.
TABLES = {
    "gradients": ({"grad/w": ROWS}, []),
    "gradients and texts": ({"grad/w": ROWS, "text": list("abcd")}, []),
    "texts": ({"text": list("abcd")}, ["text"]),
    "numbers and texts": ({"w": ROWS, "text": list("abcd")}, ["text"]),
    "bytes": ({"grad/w": np.array([b"a", b"b", b"c", b"d"])}, ["w"]),
    "complex": ({"grad/w": ROWS + 1j}, ["w"]),
    "dates": ({"grad/w": np.arange("2020", "2024", dtype="datetime64[Y]")}, ["w"]),
    "fields": ({"grad/w": np.zeros(4, [("a", "f4")])}, ["w"]),
    "bool": ({"grad/w": ROWS > 0}, []),
    "uint64": ({"grad/w": np.abs(ROWS).astype(np.uint64)}, []),
    "int4": ({"grad/w": ROWS.astype(ml_dtypes.int4)}, []),
    "float8": ({"grad/w": ROWS.astype(ml_dtypes.float8_e5m2)}, []),
    "scalars": ({"grad/w": ROWS[:, 0]}, []),
    "no elements": ({"grad/w": ROWS[:, :0]}, []),
}
SCORING = (
    ("attribute", "{0}", "{0}", "--curvature=identity", "--top=0"),
    ("attribute", "{0}", "{0}", "--curvature=fisher", "--mode=cosine", "--query", "1", "3"),
    ("self-influence", "{0}", "--curvature=diagonal"),
)
OTHERS = (("ls", "{0}"), ("show", "{0}"), ("verify", "{0}"), ("export", "{0}", "{0}.jsonl"))


def typed(command, path):
    return [part.format(path) for part in command]


@pytest.fixture(params=TABLES)
def odd(request, tmp_path):
    columns, unreal = TABLES[request.param]
    with sawlog.store.create(tmp_path / "odd") as writer:
        writer.append([1, 2, 3, 4], columns)
    return tmp_path / "odd", unreal


def test_tables_of_all_kinds(sawlog_, odd):
    path, unreal = odd
    for command in SCORING:
        done = sawlog_(*typed(command, path), "--json")
        assert done.code == (2 if unreal else 0), done.err
        for name in unreal:
            assert f"are not real numbers: {name!r} (" in done.err
            assert "hint: " in done.err
    for command in OTHERS:
        assert sawlog_(*typed(command, path)).code == 0


def test_the_layers_that_can_be_scored_are_named(sawlog_, tmp_path):
    with sawlog.store.create(tmp_path / "odd") as writer:
        writer.append([1, 2], {"w": ROWS[:2], "text": ["a", "b"], "v": ROWS[:2]})
    done = sawlog_("self-influence", tmp_path / "odd", "--curvature=identity")
    assert "names=['w', 'v']" in done.err
    options = ("--curvature=identity", "--names", "w", "--json")
    assert sawlog_("self-influence", tmp_path / "odd", *options).code == 0


def test_stores_without_rows(sawlog_, tmp_path):
    for name, schema in (
        ("nothing", []),
        ("no rows", [sawlog.store.Table((sawlog.store.Column("grad/w", ROWS.dtype, (3,)),))]),
    ):
        sawlog.store.create(tmp_path / name, schema=schema).close()
        for command in SCORING:
            done = sawlog_(*typed(command, tmp_path / name))
            assert done.code == 2
            assert "error: " in done.err
        for command in OTHERS[:3]:
            assert sawlog_(*typed(command, tmp_path / name)).code == 0


def test_no_rows_in_common(sawlog_, tmp_path):
    """Layers of different examples, and ids of different kinds."""
    for name, ids in (("others", [5, 6]), ("texts", ["x", "y"])):
        with sawlog.store.create(tmp_path / name) as writer:
            writer.append([1, 2], {"grad/a": ROWS[:2]})
            writer.append(ids, {"grad/b": ROWS[:2]})
        for command in SCORING:
            done = sawlog_(*typed(command, tmp_path / name))
            assert done.code == 2
            assert "error: " in done.err
        some = ("--names", "b", "--curvature=identity", "--json")
        done = sawlog_("self-influence", tmp_path / name, *some)
        assert {each["id"] for each in done.json["ranking"]} == set(ids)


@pytest.mark.parametrize("command", ["attribute", "self-influence"])
def test_help_tells_the_default_damping(sawlog_, command):
    said = " ".join(sawlog_(command, "--help", width=200).out.replace("│", " ").split())
    assert {Diagonal.damping, Kronecker.damping} == {FACTORED}
    assert FullMatrix.damping == DENSE
    for each, what in ((FACTORED, ": share "), (DENSE, "fisher share ")):
        assert each == Sampled(each.share, noise=each.noise)
        assert f"{what}{each.share:g} and k = {each.noise:g}" in said
    assert f"{{{','.join(KINDS)}}}" in said
    assert said.count("default") == said.count("(default") + 1 + ("By default" not in said)


def test_blank_names_and_ids_are_in_quotes(sawlog_, tmp_path):
    """A name that cannot be seen would leave a hole in a table."""
    path = tmp_path / "blank"
    with sawlog.store.create(path) as writer:
        writer.extend({"  ": np.arange(2.0)}, step=np.arange(2))
        writer.append(["", " a", "b", "c"], {"grad/w": ROWS})
    for command in ("show", "tail", "plot", "compare"):
        assert '"  "' in sawlog_(command, path).out, command
    ranked = sawlog_("self-influence", path, "--curvature", "identity").out
    assert all(each in ranked for each in ('""', '" a"', " b ", " c "))

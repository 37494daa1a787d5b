"""``sawlog show``."""

import ml_dtypes
import numpy as np
import pytest
from rich.cells import cell_len

import sawlog.store
from sawlog.records import Entries
from sawlog.store import Column, Series, Table
from tests.cli.stores import change_value, cut, make_run, segments


def by_name(shown):
    return {series["name"]: series for series in shown["series"]}


def test_everything_as_data(sawlog_, run):
    done = sawlog_("show", run, "--json")
    assert (done.code, done.err) == (0, "")
    shown = done.json
    assert shown["path"] == str(run)
    assert shown["config"] == {"duplicates": "error", "nan": "allow", "fixed": False}
    assert shown["meta"] == {"lr": 0.1, "bad": "NaN"}
    assert (shown["segments"], shown["state"], shown["problems"]) == (3, "closed", [])
    assert set(by_name(shown)) == {"loss", "hidden"}
    loss, hidden = by_name(shown)["loss"], by_name(shown)["hidden"]
    assert (loss["dtype"], loss["shape"], loss["entries"], loss["bytes"]) == (
        "float32",
        [],
        30,
        120,
    )
    assert loss["steps"] == ["step"]
    assert loss["last"] == {"value": 29.0, "steps": {"step": 29}}
    assert (loss["min"], loss["max"], loss["nan"], loss["inf"]) == (0.0, 29.0, 1, 0)
    assert loss["mean"] == pytest.approx((sum(range(30)) - 3) / 29)
    assert loss["trend"] == [float(i) if i != 3 else "NaN" for i in range(30)]
    assert (hidden["shape"], hidden["bytes"]) == ([4], 480)
    assert hidden["last"] == {"norm": 58.0, "steps": {"step": 29}}
    assert "trend" not in hidden
    (table,) = shown["tables"]
    assert (table["ids"], table["rows"], table["rows_written"]) == ("int", 7, 7)
    assert (table["first_ids"], table["last_id"]) == ([10, 11, 12, 13, 14], 16)
    grad, label = table["columns"]
    assert (grad["name"], grad["dtype"], grad["shape"], grad["bytes"]) == (
        "grad",
        "float32",
        [3],
        84,
    )
    assert grad["last"]["norm"] == pytest.approx(12**0.5)
    assert label["last"] == {"value": 6}


def test_everything_for_people(sawlog_, run):
    done = sawlog_("show", run)
    assert (done.code, done.err) == (0, "")
    words = '4 names|3 segments|duplicates error|{"lr": 0.1|table of 7 rows|10, 11, 12, 13, 14'
    for word in (*words.split("|"), "float32[3]", "norm 3.464", "norm 58", "14.9", "▁", "█", "x"):
        assert word in done.out, word


def test_only_some_names(sawlog_, run):
    def names(*wanted):
        shown = sawlog_("show", run, *wanted, "--json").json
        columns = [column for table in shown["tables"] for column in table["columns"]]
        return [named["name"] for named in columns + shown["series"]]

    assert names("loss") == ["loss"]
    assert names("l*") == ["label", "loss"]
    assert names("hidden", "grad") == ["grad", "hidden"]
    done = sawlog_("show", run, "los")
    assert done.code == 2
    assert "'loss'" in done.err
    assert sawlog_("show", run, "z*").code == 2


def test_a_name_that_looks_like_a_pattern(sawlog_, tmp_path):
    with sawlog.store.create(tmp_path / "run") as writer:
        writer.log({"w[0]": 1.0, "w0": 2.0}, step=0)
    assert set(by_name(sawlog_("show", tmp_path / "run", "w[0]", "--json").json)) == {"w[0]"}
    assert set(by_name(sawlog_("show", tmp_path / "run", "w[01]", "--json").json)) == {"w0"}


def test_an_empty_store(sawlog_, tmp_path):
    sawlog.store.create(tmp_path / "run").close()
    done = sawlog_("show", tmp_path / "run")
    assert done.code == 0
    assert "0 names" in done.out
    shown = sawlog_("show", tmp_path / "run", "--json").json
    assert shown["series"] == shown["tables"] == []
    done = sawlog_("show", tmp_path / "run", "loss")
    assert done.code == 2
    assert "there are no names at all" in done.err


def test_names_without_data(sawlog_, tmp_path):
    schema = [
        Series(Column("loss", np.dtype("f4")), (Column("step", np.dtype("i8")),)),
        Table((Column("grad", np.dtype("f4"), (3,)),), "str"),
    ]
    sawlog.store.create(tmp_path / "run", schema=schema).close()
    assert sawlog_("show", tmp_path / "run").code == 0
    shown = sawlog_("show", tmp_path / "run", "--json").json
    assert shown["config"]["fixed"] is True
    assert by_name(shown)["loss"]["entries"] == 0
    assert by_name(shown)["loss"]["last"] is None
    assert shown["tables"][0]["rows"] == 0
    assert shown["tables"][0]["first_ids"] == []


VALUES = {
    "bool": (np.array([True, False, True]), True),
    "int8": (np.array([1, -2, 3], np.int8), 3),
    "uint64": (np.array([0, 2**64 - 1], np.uint64), 2**64 - 1),
    "int64": (np.array([-(2**63), 2**63 - 1]), 2**63 - 1),
    "float16": (np.array([1, 2.5], np.float16), 2.5),
    "float64": (np.array([1, -np.inf]), "-Infinity"),
    "bfloat16": (np.array([1, 2.5], ml_dtypes.bfloat16), 2.5),
    "float8": (np.array([1, 2.5], ml_dtypes.float8_e4m3fn), 2.5),
    "complex": (np.array([1, 2j]), "2j"),
    "text": (np.array(["a", "é"]), "é"),
    "bytes": (np.array([b"a", b"\xff"]), "\\xff"),
    "time": (np.array(["2026-01-02", "2026-01-03"], "M8[D]"), "2026-01-03"),
    "record": (np.zeros(2, [("a", "f4"), ("b", "i2")]), "(0.0, 0)"),
    "huge": (np.array([1.7e308, 1.7e308]), 1.7e308),
}


def test_every_kind_of_value(sawlog_, tmp_path):
    with sawlog.store.create(tmp_path / "run") as writer:
        for name, (values, _) in VALUES.items():
            writer.extend({name: values, f"{name}s": np.stack([values, values], axis=1)})
    assert sawlog_("show", tmp_path / "run").code == 0
    shown = by_name(sawlog_("show", tmp_path / "run", "--json").json)
    assert {name: shown[name]["last"]["value"] for name in VALUES} == {
        name: last for name, (_, last) in VALUES.items()
    }
    assert (shown["int64"]["min"], shown["int64"]["max"]) == (-(2**63), 2**63 - 1)
    assert (shown["bool"]["min"], shown["bool"]["mean"]) == (0.0, pytest.approx(2 / 3))
    assert (shown["float64"]["min"], shown["float64"]["inf"]) == (1.0, 1)
    assert shown["huge"]["mean"] == 1.7e308
    assert shown["huges"]["last"]["norm"] == "Infinity"
    assert shown["bfloat16s"]["last"]["norm"] == pytest.approx(2.5 * 2**0.5)
    assert shown["complexs"]["last"]["norm"] == pytest.approx(2 * 2**0.5)
    assert shown["texts"]["last"]["norm"] is None
    assert "trend" not in shown["complex"]


def test_entries_that_were_not_logged_do_not_count(sawlog_, tmp_path):
    steps = {"step": np.arange(4)}
    mask = np.array([True, True, False, False])
    wide = np.array([[True, False]] * 3 + [[False, False]])
    with sawlog.store.create(tmp_path / "run") as writer:
        writer.write(
            {
                "some": Entries(np.array([1.0, 2.0, 9.0, 9.0]), steps, mask),
                "lanes": Entries(np.array([[3.0, 9.0]] * 4), steps, wide),
                "none": Entries(np.ones(4), steps, np.zeros(4, bool)),
            }
        )
    assert sawlog_("show", tmp_path / "run").code == 0
    shown = by_name(sawlog_("show", tmp_path / "run", "--json").json)
    some, lanes, none = (shown[name] for name in ("some", "lanes", "none"))
    assert some["last"] == {"value": 2.0, "steps": {"step": 1}}
    assert (some["min"], some["mean"], some["max"]) == (1.0, 1.5, 2.0)
    assert some["trend"] == [1.0, 2.0, None, None]
    assert lanes["last"] == {"norm": 3.0, "steps": {"step": 2}}
    assert (none["last"], none["min"], none["mean"]) == (None, None, None)


def test_several_step_axes_and_steps_with_axes(sawlog_, tmp_path):
    with sawlog.store.create(tmp_path / "run") as writer:
        writer.log({"loss": 1.0}, epoch=2, step=np.arange(5))
    shown = by_name(sawlog_("show", tmp_path / "run", "--json").json)
    assert shown["loss"]["last"]["steps"] == {"epoch": 2, "step": [0, 1, 2, 3, 4]}
    assert "epoch 2, step [0, 1, 2, ...]" in sawlog_("show", tmp_path / "run").out


def test_string_ids(sawlog_, tmp_path):
    ids = [f"Beispiel-ü{i}" for i in range(8)]
    with sawlog.store.create(tmp_path / "run") as writer:
        writer.append(ids[:2], {"x": np.arange(2.0)})
        writer.flush()
        writer.append(ids[2:], {"x": np.arange(2.0, 8.0)})
    (table,) = sawlog_("show", tmp_path / "run", "--json").json["tables"]
    assert (table["ids"], table["rows"]) == ("str", 8)
    assert table["first_ids"] == ids[:2]  # of the first segment
    assert table["last_id"] == ids[-1]
    assert table["columns"][0]["last"] == {"value": 7.0}


@pytest.mark.parametrize("policy", ["first", "replace"])
def test_rows_that_do_not_count(sawlog_, tmp_path, policy):
    """Two writers at once wrote the same id, each as its last row."""
    one = sawlog.store.create(tmp_path / "run", duplicates=policy)
    two = sawlog.store.open(tmp_path / "run", "append")
    one.append([1, 2], {"x": np.zeros(2)})
    one.close()
    two.append([3, 2], {"x": np.full(2, 9.0)})
    two.close()
    with sawlog.store.open(tmp_path / "run") as reader:
        truth = reader.gather([2])["x"][0]
    (table,) = sawlog_("show", tmp_path / "run", "--json").json["tables"]
    assert (table["rows"], table["rows_written"]) == (3, 4)
    assert table["last_id"] == 2
    assert table["columns"][0]["last"]["value"] == truth
    assert "3 rows (4 written" in sawlog_("show", tmp_path / "run").out


def test_duplicates_that_the_store_refuses_are_mentioned(sawlog_, tmp_path):
    one = sawlog.store.create(tmp_path / "run")
    two = sawlog.store.open(tmp_path / "run", "append")
    for writer in (one, two):
        writer.append([1], {"x": np.zeros(1)})
        writer.close()
    done = sawlog_("show", tmp_path / "run")
    assert done.code == 0
    assert "2 rows written" in done.out
    assert "more than once" in done.out


def test_changed_values_are_named_and_the_rest_is_shown(sawlog_, run):
    change_value(segments(run)[1], "loss")
    done = sawlog_("show", run, "--json")
    assert done.code == 1
    shown = done.json
    assert shown["state"] == "damaged"
    assert by_name(shown)["loss"]["damage"]
    assert by_name(shown)["loss"]["last"] is None
    assert by_name(shown)["hidden"]["last"]["norm"] == 58.0
    assert [problem["file"] for problem in shown["problems"]] == ["loss"]
    done = sawlog_("show", run)
    assert done.code == 1
    assert "damaged" in done.out


def test_changed_ids_and_rows(sawlog_, run):
    change_value(segments(run)[2], "grad")
    shown = sawlog_("show", run, "--json").json
    (table,) = shown["tables"]
    assert table["rows"] == 7
    assert [bool(column["damage"]) for column in table["columns"]] == [True, False]
    change_value(segments(run)[2], "sawlog.ids/grad")
    done = sawlog_("show", run, "--json")
    assert done.code == 1
    assert all(column["damage"] for column in done.json["tables"][0]["columns"])


def test_missing_files_are_named_and_the_rest_is_shown(sawlog_, run):
    cut(segments(run)[0])
    done = sawlog_("show", run, "--json")
    assert done.code == 1
    assert "damaged" in done.err
    shown = done.json
    assert [p["file"] for p in shown["problems"]] == [f"segments/{segments(run)[0].name}"]
    assert by_name(shown)["loss"]["entries"] == 14
    assert by_name(shown)["loss"]["last"]["value"] == 29.0


def test_thousands_of_names(sawlog_, tmp_path):
    names = [f"layer{i}/norm" for i in range(1000)]
    with sawlog.store.create(tmp_path / "run") as writer:
        for step in range(3):
            writer.extend(dict.fromkeys(names, np.ones(5)), step=np.arange(5) + 5 * step)
            writer.flush()
    done = sawlog_("show", tmp_path / "run", width=100)
    assert done.code == 0
    assert "layer199/norm" in done.out
    assert "layer200/norm" not in done.out
    assert "and 800 more names" in done.out
    shown = by_name(sawlog_("show", tmp_path / "run", "--json").json)
    assert list(shown) == names
    done = sawlog_("show", tmp_path / "run", "layer1?/norm", "--limit", "3")
    assert "and 7 more names" in done.out


@pytest.mark.parametrize("width", [8, 20, 40, 60, 80, 100, 160])
def test_it_fits(sawlog_, tmp_path, width):
    with sawlog.store.create(tmp_path / "run", meta={"a": "b" * 300}) as writer:
        for step in range(50):
            writer.log({"层/損失" * 12: float(step), "x": np.ones((2, 3, 4))}, step=step, epoch=1)
        writer.append(["i" * 200, "j"], {"grad" * 30: np.ones((2, 5))})
    done = sawlog_("show", tmp_path / "run", width=width)
    assert done.code == 0
    assert max(map(cell_len, done.out.splitlines())) <= width
    together = done.out.replace("\n", "").replace(" ", "")
    assert "▁" in together
    for word in ("epoch1", "49", "float64[2,3,4]", "norm4.899"):
        assert word in together or width > 8, word


def test_a_negative_limit(sawlog_, run):
    assert sawlog_("show", run, "--limit=-1").code == 2


# -- a folder in place of its store ----------------------------------------------------------------


@pytest.mark.parametrize("command", ["show", "tail", "repair", "export"])
def test_a_folder_with_one_store_stands_for_it(sawlog_, tmp_path, command):
    make_run(tmp_path / "runs" / "seed-0", steps=2)
    target = [tmp_path / "a.csv", "--names", "loss"] if command == "export" else []
    done = sawlog_(command, tmp_path / "runs", *target)
    assert (done.code, done.err) == (0, "")
    make_run(tmp_path / "runs" / "run" / "metrics", steps=2)
    done = sawlog_(command, tmp_path / "runs", *target)
    assert done.code == 2
    assert "2 stores in it: run/metrics, seed-0." in done.err.replace("\n", " ")
    assert f"such as {tmp_path / 'runs' / 'run' / 'metrics'}" in done.err.replace("\n", " ")


def test_verify_and_compact_take_all_stores_of_a_folder(sawlog_, tmp_path):
    for name in ("b", "a", "deep/c"):
        make_run(tmp_path / "runs" / name, steps=2)
    for command in ("verify", "compact"):
        done = sawlog_(command, tmp_path / "runs", tmp_path / "runs" / "a", "--json")
        paths = [each["path"] for each in done.json]
        assert paths == [str(tmp_path / "runs" / name) for name in ("a", "b", "deep/c")]
        assert done.code == 0
    (tmp_path / "empty").mkdir()
    assert sawlog_("verify", tmp_path / "empty").code == 2


def test_a_changed_description_of_the_store_is_damage(sawlog_, run):
    file = run / "store.json"
    file.write_text(file.read_text().replace('"version"', '"versiom"'))
    done = sawlog_("show", run, "--json")
    assert (done.code, done.json["state"]) == (1, "damaged")
    assert [problem["file"] for problem in done.json["problems"]] == ["store.json"]
    assert by_name(done.json)["loss"]["last"]["value"] == 29.0
    assert sawlog_("show", run).code == 1

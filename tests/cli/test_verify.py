"""``sawlog verify``, ``compact`` and ``repair``."""

import numpy as np
import pytest

import sawlog.store
from tests.cli.stores import change_value, cut, make_run, segments


def test_intact(sawlog_, run):
    done = sawlog_("verify", run, "--json")
    assert (done.code, done.err) == (0, "")
    (report,) = done.json
    assert report["ok"] is True
    assert (report["problems"], report["lost"]) == ([], {})
    assert report["segments"] == 3
    assert report["bytes"] == sum(file.stat().st_size for file in segments(run))
    assert report["readable"] == {"loss": 30, "hidden": 30, "grad": 7, "label": 7}
    done = sawlog_("verify", run)
    assert done.out.splitlines()[0].split() == [str(run), "ok"]


def test_each_damaged_file_is_named_with_what_is_lost(sawlog_, run):
    first, second, third = segments(run)
    change_value(first, "hidden")
    cut(second)
    third.unlink()
    done = sawlog_("verify", run, "--json")
    assert done.code == 1
    (report,) = done.json
    problems = {problem["file"]: problem["what"] for problem in report["problems"]}
    assert set(problems) == {f"segments/{file.name}" for file in (first, second, third)}
    assert "hidden" in problems[f"segments/{first.name}"]
    assert problems[f"segments/{third.name}"] == "missing"
    assert report["lost"] == {"hidden": 16}
    assert report["readable"] == {"loss": 16, "hidden": 0, "grad": 0, "label": 0}
    done = sawlog_("verify", run)
    assert done.code == 1
    for word in (first.name, second.name, third.name, "3 damaged or missing files", "16"):
        assert word in done.out, word
    assert "unknown" in done.out


def test_a_narrow_screen(sawlog_, run):
    cut(segments(run)[0])
    done = sawlog_("verify", run, width=25)
    assert max(map(len, done.out.splitlines())) <= 25
    assert segments(run)[0].name in done.out.replace("\n", "").replace(" ", "")


def test_several_stores_and_one_that_is_none(sawlog_, tmp_path, run):
    other = make_run(tmp_path / "other")
    done = sawlog_("verify", run, tmp_path / "none", other, "--json")
    assert done.code == 2
    assert [report["path"] for report in done.json] == [str(run), str(other)]
    assert done.err.count("error:") == 1
    cut(segments(other)[0])
    assert sawlog_("verify", tmp_path / "none", other, run).code == 1
    assert sawlog_("verify", other, tmp_path / "none", run).code == 1


@pytest.mark.parametrize("file", ["store.json", "schema/00000001.json"])
def test_other_files(sawlog_, run, file):
    cut(run / file)
    done = sawlog_("verify", run, "--json")
    assert done.code == 1
    assert [problem["file"] for problem in done.json[0]["problems"]] == [file]
    assert done.json[0]["readable"] == {"loss": 30, "hidden": 30, "grad": 7, "label": 7}


def test_a_damaged_store_without_data(sawlog_, tmp_path):
    sawlog.store.create(tmp_path / "run").close()
    cut(tmp_path / "run" / "store.json")
    assert sawlog_("verify", tmp_path / "run").code == 1


# ---- compact


def test_compact_says_before_and_after(sawlog_, run):
    done = sawlog_("compact", run, "--json")
    assert (done.code, done.err) == (0, "")
    (result,) = done.json
    assert (result["path"], result["segments_before"], result["segments_after"]) == (str(run), 3, 1)
    assert result["bytes_after"] == segments(run)[0].stat().st_size < result["bytes_before"]
    with sawlog.store.open(run) as reader:
        assert reader.count("loss") == 30
    done = sawlog_("compact", run)
    assert done.out.splitlines()[1].split()[:3] == [str(run), "1", "1"]


@pytest.mark.parametrize("grace", [0, 60])
def test_compact_keeps_what_it_merged_for_a_while(sawlog_, run, grace):
    before = {file.name for file in segments(run)}
    assert sawlog_("compact", run, "--grace", grace).code == 0
    kept = {file.name for file in run.rglob("*.safetensors")} & before
    assert kept == (before if grace else set())


def test_compact_several_and_one_that_is_none(sawlog_, tmp_path, run):
    done = sawlog_("compact", tmp_path / "none", run, "--json")
    assert done.code == 2
    assert [result["segments_after"] for result in done.json] == [1]


def test_compact_leaves_a_damaged_store_alone(sawlog_, run):
    cut(segments(run)[0])
    before = segments(run)
    done = sawlog_("compact", run, "--json")
    assert done.code == 1
    assert done.json == []
    assert before[0].name in done.err
    assert segments(run) == before


def test_compact_to_a_size(sawlog_, tmp_path):
    with sawlog.store.create(tmp_path / "run", segment_bytes=300_000) as writer:
        writer.append(range(3000), {"x": np.ones((3000, 100))})
    (result,) = sawlog_("compact", tmp_path / "run", "--segment-mb", "1", "--json").json
    assert result["segments_before"] > result["segments_after"] > 1
    assert sawlog_("compact", tmp_path / "run", "--segment-mb", "0").code == 2


# ---- repair


def test_repair_asks_for_yes_and_changes_nothing(sawlog_, run):
    cut(segments(run)[0])
    before = {file: file.read_bytes() for file in run.rglob("*") if file.is_file()}
    done = sawlog_("repair", run)
    assert done.code == 2
    assert segments(run)[0].name in done.out
    assert "--yes" in done.out
    done = sawlog_("repair", run, "--json")
    assert done.code == 2
    assert done.json["repaired"] is False
    assert [p["file"] for p in done.json["given_up"]] == [f"segments/{segments(run)[0].name}"]
    assert {file: file.read_bytes() for file in run.rglob("*") if file.is_file()} == before


def test_repair_gives_up_what_is_damaged(sawlog_, run):
    lost = segments(run)[0]
    cut(lost)
    done = sawlog_("repair", run, "--yes", "--json")
    assert (done.code, done.err) == (0, "")
    assert done.json["repaired"] is True
    assert [p["file"] for p in done.json["given_up"]] == [f"segments/{lost.name}"]
    assert sawlog_("verify", run).code == 0
    with sawlog.store.open(run) as reader:
        assert reader.count("loss") == 14
    cut(lost.with_name(lost.name.replace("00000001", "00000002")))
    done = sawlog_("repair", run, "--yes")
    assert done.code == 0
    assert "set aside or missing: 1 file" in done.out


@pytest.mark.parametrize("yes", [(), ("--yes",)])
def test_repair_of_an_intact_store(sawlog_, run, yes):
    done = sawlog_("repair", run, *yes)
    assert done.code == 0
    assert "nothing is damaged" in done.out
    assert sawlog_("repair", run, *yes, "--json").json["given_up"] == []

"""``sawlog export``."""

import typing
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

import sawlog.store
from sawlog.cli._export import Export
from sawlog.store._views._export import FORMATS
from tests.cli.stores import cut, segments


def test_the_formats_are_those_of_the_store():
    hint = typing.get_type_hints(Export)["format"]
    assert set(typing.get_args(typing.get_args(hint)[0])) == set(FORMATS)


def test_everything_in_one_file(sawlog_, run, tmp_path):
    target = tmp_path / "all.safetensors"
    done = sawlog_("export", run, target, "--json")
    assert (done.code, done.err) == (0, "")
    assert done.json == {
        "path": str(run),
        "files": [{"file": str(target), "bytes": target.stat().st_size}],
    }
    tensors = load_file(target)
    np.testing.assert_array_equal(tensors["hidden"][-1], np.full(4, 29, np.float32))
    assert {"loss", "hidden", "grad", "label"} <= set(tensors)


def test_some_names_in_a_table(sawlog_, run, tmp_path):
    target = tmp_path / "rows.jsonl"
    done = sawlog_("export", run, target, "--names", "la*", "grad")
    assert done.code == 0
    assert str(target) in done.out
    assert len(target.read_text().splitlines()) == 7
    assert '"label"' in target.read_text()


def test_a_folder_with_a_format(sawlog_, run, tmp_path):
    done = sawlog_("export", run, tmp_path / "out", "--format", "jsonl", "--long", "--json")
    assert done.code == 0, done.err
    assert len(done.json["files"]) == 2
    assert {file.suffix for file in (tmp_path / "out").iterdir()} == {".jsonl"}


def test_an_existing_file_is_kept_unless_told_otherwise(sawlog_, run, tmp_path):
    target = tmp_path / "all.safetensors"
    target.write_text("mine")
    done = sawlog_("export", run, target, "--json")
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("error: ")
    assert target.read_text() == "mine"
    assert sawlog_("export", run, target, "--overwrite").code == 0
    assert load_file(target)["label"].tolist() == list(range(7))


@pytest.mark.parametrize(
    "args",
    [
        ("x.unknown",),
        ("x.csv", "--names", "los"),
        ("x", "--format", "xls"),
    ],
)
def test_bad_input(sawlog_, run, tmp_path, args):
    done = sawlog_("export", run, tmp_path / args[0], *args[1:])
    assert (done.code, done.out) == (2, "")
    assert not (tmp_path / args[0]).exists()


def test_a_damaged_store(sawlog_, run, tmp_path):
    cut(segments(run)[0])
    done = sawlog_("export", run, tmp_path / "x.safetensors")
    assert (done.code, done.out) == (1, "")
    assert segments(run)[0].name in done.err


def test_an_empty_store(sawlog_, tmp_path):
    sawlog.store.create(tmp_path / "run").close()
    done = sawlog_("export", tmp_path / "run", tmp_path / "x.safetensors")
    assert done.code in (0, 2)
    assert "Traceback" not in done.err


def test_the_target_as_an_option(sawlog_, run, tmp_path):
    target = tmp_path / "all.safetensors"
    assert sawlog_("export", run, "-o", target).code == 0
    assert target.exists()
    for wrong in ((), (tmp_path / "a.csv", "-o", tmp_path / "b.csv")):
        done = sawlog_("export", run, *wrong)
        assert (done.code, done.out) == (2, "")
        assert "TARGET. \nhint:" in done.err.replace(".\n", ". \n")
        assert "-o TARGET" in done.err


def test_hints_of_export_name_its_options(sawlog_, tmp_path):
    with sawlog.store.create(tmp_path / "run") as writer:
        writer.extend({"loss": np.arange(3.0)}, step=np.arange(3))
        writer.extend({"eval": np.arange(2.0)}, epoch=np.arange(2))
    done = sawlog_("export", tmp_path / "run", tmp_path / "run.csv")
    assert done.code == 2
    assert "choose some of them with --names; --long puts" in done.err
    assert "with --format csv: one file for each" in done.err
    (tmp_path / "loss.csv").touch()
    done = sawlog_("export", tmp_path / "run", tmp_path / "loss.csv", "--names", "loss")
    assert "hint: --overwrite replaces it" in done.err


OPTIONS = [
    ([], {}),
    (["--format", "jsonl"], {"format": "jsonl"}),
    (["--format", "csv", "--long", "--names", "loss"], {"format": "csv", "names": ["loss"]}),
    (["--format", "csv", "--names", "loss", "la*"], {"format": "csv", "names": ["loss", "label"]}),
    (["--format", "jsonl", "--long", "--names", "grad"], {"format": "jsonl", "names": ["grad"]}),
]


@pytest.mark.parametrize(("typed", "options"), OPTIONS)
def test_each_option_makes_the_files_that_the_function_makes(
    sawlog_, run, tmp_path, typed, options
):
    ours, theirs = (tmp_path / side / ("all" if typed else "all.safetensors") for side in "ab")
    for place in (ours, theirs):
        place.parent.mkdir()
    done = sawlog_("export", run, ours, *typed, "--json")
    assert (done.code, done.err) == (0, "")
    with sawlog.store.open(run) as reader:
        wanted = sawlog.store.export(reader, theirs, **{"long": "--long" in typed, **options})
    assert [file["file"] for file in done.json["files"]] == [
        str(path).replace(str(theirs), str(ours)) for path in wanted
    ]
    for path, file in zip(wanted, done.json["files"], strict=True):
        assert path.read_bytes() == Path(file["file"]).read_bytes()

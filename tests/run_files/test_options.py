"""Options: every key, value and combination that is not valid is refused with the valid ones."""

import pytest

from sawlog.errors import ArgumentError
from sawlog.run_files._options import Compression, Options, read
from sawlog.run_files._saved_options import load_options

GOOD = [
    ({}, Options()),
    (
        {"log": "grad", "save": "grad", "statistic": "kfac"},
        Options(("grad",), ("grad",), ("kfac",)),
    ),
    ({"log": ["grad", "forward"]}, Options(("forward", "grad"))),
    ({"log": ("grad",), "save": [], "statistic": ["mean"]}, Options(save=(), statistic=("mean",))),
    ({"compress": 8}, Options(compress=Compression(rank=8))),
    (
        {"compress": {"kind": "pca", "bytes": 100}},
        Options(compress=Compression("pca", None, 100)),
    ),
    ({"compress": None, "offload": True, "interval": 3}, Options(offload=True, interval=3.0)),
    (
        {"log": "forward", "forward": "output", "dtype": "int8"},
        Options(("forward",), forward="output", dtype="int8"),
    ),
    (
        {"statistic": "kfac", "fisher": "true", "fisher_seed": 3},
        Options(statistic=("kfac",), fisher="true", fisher_seed=3),
    ),
]

BAD = [
    (
        {"logs": "grad"},
        r"does not know the option 'logs'. Valid are: log, save.* Hint: did you mean 'log'\?",
    ),
    (
        {"log": "gradient"},
        "`log` must be one or several of .*'backward', 'grad'; got 'gradient'",
    ),
    ({"log": 3}, "`log` must be one or several of"),
    ({"log": None}, "`log` must be one or several of"),
    (
        {"statistic": ["kfac", "kfca"]},
        "`statistic` must be one or several .*'ekfac'; got 'kfca'",
    ),
    ({"log": "forward", "save": "grad"}, r"save=\['grad'\] has 'grad', but log=\['forward'\]"),
    ({"save": []}, "Nothing would be kept"),
    ({"log": "forward", "statistic": "kfac"}, "'kfac' needs gradients"),
    ({"log": "forward", "compress": 3}, "compress applies to gradients"),
    ({"statistic": ["kfac", "ekfac"]}, "one pass cannot measure both"),
    ({"statistic": "mean", "duplicates": "last"}, "cannot be subtracted"),
    ({"compress": 0}, "`compress.rank` must be a positive integer; got 0"),
    ({"compress": True}, "`compress` must be a rank"),
    ({"compress": "small"}, "`compress` must be a rank"),
    ({"compress": {"rank": 3, "bytes": 3}}, "must have either a rank or the bytes"),
    ({"compress": {}}, "must have either a rank or the bytes"),
    ({"compress": {"kind": "random", "rank": 3}}, "`compress.kind` must be one of 'orthonormal'"),
    (
        {"compress": {"ranks": 3}},
        r"compress does not know the option 'ranks'. Valid .* Hint: did you mean 'rank'\?",
    ),
    ({"compress": {"rank": 3, "seed": 0.5}}, "`compress.seed` must be an integer"),
    (
        {"dtype": "float8"},
        "`dtype` must be one of 'float32', 'float64', 'bfloat16', 'float16', 'int8'; got 'float8'",
    ),
    ({"precision": "half"}, "`precision` must be one of"),
    ({"offload": 1}, "`offload` must be True or False"),
    ({"reduction": "none"}, "`reduction` must be one of 'auto', 'mean', 'sum', 'tokens'"),
    ({"interval": 0}, "`interval` must be a positive number of seconds"),
    ({"forward": "both"}, "`forward` must be one of 'input', 'output'"),
    ({"fisher": "exact"}, "`fisher` must be one of 'empirical', 'true'; got 'exact'"),
    ({"fisher": "true"}, r"applies to statistic=\"kfac\" and .*got statistic=\[\]"),
    (
        {"fisher": "true", "statistic": ["kfac", "mean"]},
        r"got statistic=\['mean', 'kfac'\]. Hint: leave it out, or measure \['mean'\]",
    ),
    ({"fisher_seed": 0.5}, "`fisher_seed` must be an integer; got 0.5"),
    (7, "setup needs a dict or the path of a YAML file; got int"),
]


@pytest.mark.parametrize(("given", "expected"), GOOD)
def test_good(given, expected):
    before = dict(given)
    assert read(given) == expected
    assert read(expected.to_json()) == expected
    assert read(expected) == expected
    assert given == before


@pytest.mark.parametrize(("given", "message"), BAD)
def test_bad(given, message):
    with pytest.raises(ArgumentError, match=message):
        read(given)


def test_keywords_go_before_the_dict():
    assert read({"log": "forward"}, log="grad").log == ("grad",)


def test_yaml(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text("log: [forward, grad]\nsave: grad\ncompress: {kind: gaussian, rank: 4}\n")
    expected = Options(("forward", "grad"), ("grad",), compress=Compression("gaussian", 4))
    assert read(path) == read(str(path)) == expected
    path.write_text("")
    assert read(path) == Options()
    path.write_text("log: [")
    with pytest.raises(ArgumentError, match="is not YAML"):
        read(path)
    path.write_text("- log")
    with pytest.raises(ArgumentError, match="is not a mapping"):
        read(path)
    with pytest.raises(ArgumentError, match="cannot be read"):
        read(tmp_path / "nowhere.yaml")


def test_a_file_where_the_folder_of_a_run_should_be(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ArgumentError, match="cannot be the folder of a run: Not a directory"):
        load_options(tmp_path / "file" / "run")

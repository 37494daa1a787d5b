"""Stores for the tests of exports."""

import json

import ml_dtypes
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sawlog import store

ARROW = ["parquet", "arrow", "feather"]

NUMBERS = [
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64"),
]

NARROW = sorted(n for n in dir(ml_dtypes) if n == "bfloat16" or n.startswith(("float", "int4")))

OTHERS = ["complex64", "complex128", "M8[ns]", "m8[us]", "S4", "U3", "V5"]

NESTED = np.dtype([("a", "u1"), ("b", [("c", "<f4", (2,)), ("d", "S3")])])

DTYPES = {
    **{name: np.dtype(name) for name in [*NUMBERS, *OTHERS]},
    **{name: np.dtype(getattr(ml_dtypes, name)) for name in NARROW},
    "structured": NESTED,
}


def read_arrow(path):
    if path.suffix == ".parquet":
        return pq.read_table(path)
    with pa.ipc.open_file(path) as file:
        return file.read_all()


def read_jsonl(path):
    def strictly(word):
        raise AssertionError(f"{word} is not JSON")

    with open(path, encoding="utf-8") as file:
        return [json.loads(line, parse_constant=strictly) for line in file]


@pytest.fixture
def run(tmp_path):
    with store.create(tmp_path / "run", segment_bytes=1000) as writer:
        writer.append(np.arange(100), {"grad": np.arange(400.0).reshape(100, 4)})
        writer.extend({"loss": np.arange(100.0)}, step=np.arange(100))
    return tmp_path / "run"

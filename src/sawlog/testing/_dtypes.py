"""Contract: every dtype comes back to the last bit, in rows and in entries."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from sawlog.errors import SawlogError
from sawlog.testing._equality import assert_same, sample
from sawlog.testing._hooks import StoreHooks

PLAIN = [
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64", "longdouble", "complex64", "complex128", "clongdouble"),
    *("M8[ns]", "M8[D]", "m8[us]", "S1", "S10", "U1", "U4", "V5"),
]
NARROW = [name for name in dir(ml_dtypes) if name == "bfloat16" or name.startswith("float8_")]
STRUCTURED: dict[str, Any] = {
    "structured": [("a", "<i4"), ("b", "<f8")],
    "structured-nested": [("a", "u1"), ("b", [("c", "<f4", (2,)), ("d", "S3")])],
    "structured-aligned": np.dtype([("a", "u1"), ("b", "<f8")], align=True),
}
DTYPES = {
    **{name: np.dtype(name) for name in PLAIN},
    **{name: np.dtype(getattr(ml_dtypes, name)) for name in NARROW},
    **{name: np.dtype(fields) for name, fields in STRUCTURED.items()},
}
SHAPES = [(), (3,), (2, 1, 3), (0,)]

each_dtype = pytest.mark.parametrize("dtype", list(DTYPES.values()), ids=list(DTYPES))
each_shape = pytest.mark.parametrize("shape", SHAPES, ids=str)


class DtypeContract(StoreHooks):
    """Every fixed-size dtype of numpy, and those of ml_dtypes."""

    @each_dtype
    @each_shape
    def test_rows_of_a_dtype(self, path: Path, dtype: np.dtype, shape: tuple[int, ...]) -> None:
        """Rows are read exactly: whole, gathered and in blocks, from two segments."""
        values = sample(dtype, (5, *shape))
        with self.create(path) as writer:
            writer.append([4, 3, 2], {"x": values[:3]})
            writer.flush()
            writer.append([1, 0], {"x": values[3:]})
        with self.open(path) as reader:
            assert_same(reader.read("x"), values)
            assert_same(reader.gather([0, 4, 2])["x"], values[[4, 0, 2]])
            seen = 0
            for block in reader.blocks():
                assert_same(block.values["x"], values[seen : seen + len(block.ids)])
                seen += len(block.ids)
            assert seen == 5

    @each_dtype
    def test_entries_of_a_dtype(self, path: Path, dtype: np.dtype) -> None:
        """Entries are read exactly, and so are numeric steps."""
        values = sample(dtype, (4, 2))
        with self.create(path) as writer:
            writer.log({"x": values[0]}, step=np.int32(0))
            writer.extend({"x": values[1:3]}, step=np.arange(1, 3, dtype=np.int32))
            writer.flush()
            writer.log({"x": values[3]}, step=np.int32(3))
        with self.open(path) as reader:
            entries = reader.entries("x")
            assert_same(entries.values, values)
            assert_same(entries.steps["step"], np.arange(4, dtype=np.int32))

    @pytest.mark.parametrize("dtype", [">i4", ">f8", ">c16", ">U3", ">M8[ms]"])
    def test_big_endian_input(self, path: Path, dtype: str) -> None:
        """Values in the byte order of other machines are the same values."""
        native = sample(np.dtype(dtype).newbyteorder("="), (3, 2))
        with self.create(path) as writer:
            writer.append([0, 1, 2], {"x": native.astype(dtype)})
        with self.open(path) as reader:
            assert_same(reader.read("x"), native)

    def test_strided_input(self, path: Path) -> None:
        """Arrays need not be contiguous, and may be changed after the call."""
        values = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
        given = values.copy()
        with self.create(path) as writer:
            writer.append([0, 1, 2, 3], {"x": given.transpose(2, 1, 0)[::-1]})
            writer.log({"y": given[:, ::2, 1]})
            given[:] = -1
        with self.open(path) as reader:
            assert_same(reader.read("x"), values.transpose(2, 1, 0)[::-1])
            assert_same(reader.read("y"), values[None, :, ::2, 1])

    def test_python_numbers(self, path: Path) -> None:
        """Python numbers are stored as numpy converts them."""
        with self.create(path) as writer:
            writer.log({"float": 0.1, "int": 3, "bool": True, "list": [1.0, 2.0]})
        with self.open(path) as reader:
            for name, value in {"float": 0.1, "int": 3, "bool": True, "list": [1.0, 2.0]}.items():
                assert_same(reader.read(name), np.asarray([value]))

    def test_objects_are_refused(self, path: Path) -> None:
        """Dtypes without a fixed size are refused, and the store stays usable."""
        with self.create(path) as writer:
            with pytest.raises(SawlogError):
                writer.append([0], {"x": np.array([{"a": 1}], object)})
            with pytest.raises(SawlogError):
                writer.log({"y": object()})
            writer.append([0], {"z": np.zeros(1)})
        with self.open(path) as reader:
            assert reader.names == ("z",)

"""Other formats doing what the store does: append batches, read all of it, gather rows by number.

Each peer keeps its own defaults but compression, which is off, and syncs to disk at the end.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np

import sawlog.store

SEGMENT = 32 << 20


class Peer:
    """One format: ``append`` writes everything anew, the others read what is there."""

    name = ""
    package: str | None = None

    def __init__(self, folder: Path, batch: np.ndarray, batches: int) -> None:
        self.folder, self.batch, self.batches = folder / self.name.replace(" ", "-"), batch, batches
        self.rows, self.width = len(batch) * batches, batch.shape[1]
        self.ids = np.arange(self.rows)

    @classmethod
    def is_here(cls) -> bool:
        return cls.package is None or importlib.util.find_spec(cls.package) is not None

    def fresh(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        os.sync()  # what the one before left unwritten is not ours to pay for

    def append(self) -> None:
        raise NotImplementedError

    def blocks(self) -> Iterator[np.ndarray]:
        raise NotImplementedError

    def gather(self, rows: np.ndarray) -> np.ndarray:
        raise NotImplementedError

    def scan(self) -> float:
        return sum(float(block.sum()) for block in self.blocks())


class Raw(Peer):
    """What a user would write by hand: one file, synced as often as the store syncs."""

    name = "raw file"

    def append(self) -> None:
        data, unsynced = memoryview(self.batch).cast("B"), 0
        with open(self.folder / "rows", "wb", buffering=0) as file:
            for _ in range(self.batches):
                file.write(data)
                unsynced += len(data)
                if unsynced >= SEGMENT:
                    os.fsync(file.fileno())
                    unsynced = 0
            os.fsync(file.fileno())

    def _map(self) -> np.ndarray:
        return np.memmap(self.folder / "rows", self.batch.dtype, "r", shape=(self.rows, self.width))

    def blocks(self) -> Iterator[np.ndarray]:
        rows, step = self._map(), len(self.batch)
        return (rows[start : start + step] for start in range(0, self.rows, step))

    def gather(self, rows: np.ndarray) -> np.ndarray:
        return self._map()[rows]


class Sawlog(Peer):
    """The store, opened anew each time: every value returned was checked."""

    name = "sawlog"

    def append(self) -> None:
        size = len(self.batch)
        with sawlog.store.create(self.folder / "store") as writer:
            for start in range(0, self.rows, size):
                writer.append(self.ids[start : start + size], {"rows": self.batch})

    def blocks(self) -> Iterator[np.ndarray]:
        reader = sawlog.store.open(self.folder / "store")
        return (block.values["rows"] for block in reader.blocks())

    def gather(self, rows: np.ndarray) -> np.ndarray:
        return sawlog.store.open(self.folder / "store").gather(rows)["rows"]


class Arrow(Peer):
    """Arrow IPC file, memory-mapped."""

    name, package = "Arrow IPC", "pyarrow"

    def _field(self) -> object:
        import pyarrow as pa

        return pa.schema([("rows", pa.list_(pa.from_numpy_dtype(self.batch.dtype), self.width))])

    def append(self) -> None:
        import pyarrow as pa

        schema = self._field()
        with open(self.folder / "rows", "wb") as file:
            with pa.ipc.new_file(file, schema) as sink:
                for _ in range(self.batches):
                    flat = pa.array(self.batch.reshape(-1))
                    rows = pa.FixedSizeListArray.from_arrays(flat, self.width)
                    sink.write_batch(pa.record_batch([rows], schema=schema))
            file.flush()
            os.fsync(file.fileno())

    def _batches(self) -> list[np.ndarray]:
        import pyarrow as pa

        file = pa.ipc.open_file(pa.memory_map(str(self.folder / "rows")))
        batches = (file.get_batch(i).column(0) for i in range(file.num_record_batches))
        return [b.flatten().to_numpy().reshape(-1, self.width) for b in batches]

    def blocks(self) -> Iterator[np.ndarray]:
        return iter(self._batches())

    def gather(self, rows: np.ndarray) -> np.ndarray:
        batches, size = self._batches(), len(self.batch)
        out = np.empty((len(rows), self.width), self.batch.dtype)
        for number in np.unique(rows // size):
            where = rows // size == number
            out[where] = batches[number][rows[where] % size]
        return out


class Zarr(Peer):
    """zarr v3, a chunk a batch."""

    name, package = "zarr", "zarr"

    def append(self) -> None:
        import zarr

        shape = (self.rows, self.width)
        array = zarr.create_array(
            str(self.folder / "rows"),
            shape=shape,
            chunks=self.batch.shape,
            dtype=self.batch.dtype,
            compressors=None,
        )
        size = len(self.batch)
        for start in range(0, self.rows, size):
            array[start : start + size] = self.batch
        os.sync()

    def blocks(self) -> Iterator[np.ndarray]:
        import zarr

        array, step = zarr.open_array(str(self.folder / "rows"), mode="r"), len(self.batch)
        return (array[start : start + step] for start in range(0, self.rows, step))

    def gather(self, rows: np.ndarray) -> np.ndarray:
        import zarr

        return zarr.open_array(str(self.folder / "rows"), mode="r").oindex[rows]


class Hdf5(Peer):
    """HDF5, contiguous chunks of a batch."""

    name, package = "HDF5", "h5py"

    def append(self) -> None:
        import h5py

        with h5py.File(self.folder / "rows", "w") as file:
            rows = file.create_dataset(
                "rows",
                (0, self.width),
                self.batch.dtype,
                chunks=self.batch.shape,
                maxshape=(None, self.width),
            )
            for _ in range(self.batches):
                rows.resize(len(rows) + len(self.batch), axis=0)
                rows[-len(self.batch) :] = self.batch
        os.sync()

    def blocks(self) -> Iterator[np.ndarray]:
        import h5py

        with h5py.File(self.folder / "rows") as file:
            rows, step = file["rows"], len(self.batch)
            for start in range(0, self.rows, step):
                yield rows[start : start + step]

    def gather(self, rows: np.ndarray) -> np.ndarray:
        import h5py

        with h5py.File(self.folder / "rows") as file:
            unique, back = np.unique(rows, return_inverse=True)  # h5py wants them sorted
            return file["rows"][unique][back]


class Lance(Peer):
    """Lance, its own fragments."""

    name, package = "Lance", "lance"

    def append(self) -> None:
        import lance
        import pyarrow as pa

        field = pa.list_(pa.from_numpy_dtype(self.batch.dtype), self.width)
        schema = pa.schema([("rows", field)])

        def batches() -> Iterator[pa.RecordBatch]:
            for _ in range(self.batches):
                flat = pa.array(self.batch.reshape(-1))
                rows = pa.FixedSizeListArray.from_arrays(flat, self.width)
                yield pa.record_batch([rows], schema=schema)

        reader = pa.RecordBatchReader.from_batches(schema, batches())
        lance.write_dataset(reader, str(self.folder / "rows"), mode="create")
        os.sync()

    def blocks(self) -> Iterator[np.ndarray]:
        import lance

        for batch in lance.dataset(str(self.folder / "rows")).to_batches():
            yield batch.column(0).flatten().to_numpy().reshape(-1, self.width)

    def gather(self, rows: np.ndarray) -> np.ndarray:
        import lance

        unique, back = np.unique(rows, return_inverse=True)
        table = lance.dataset(str(self.folder / "rows")).take(unique)
        values = table.column(0).combine_chunks().flatten().to_numpy()
        return values.reshape(-1, self.width)[back]


class Logix(Peer):
    """LogIX's own format through its own handler: a map and a JSON file for every flush."""

    name, package = "LogIX", "logix"

    def append(self) -> None:
        from logix.logging.mmap import MemoryMapHandler

        flush = max(1, SEGMENT // self.batch.nbytes)
        buffer: list = []
        for number in range(self.batches):
            first = number * len(self.batch)
            buffer += [(str(first + i), {"rows": row}) for i, row in enumerate(self.batch)]
            if (number + 1) % flush == 0 or number + 1 == self.batches:
                name = f"log_{number // flush}"
                MemoryMapHandler.write(str(self.folder), name, buffer, [("rows",)])
                buffer = []
        os.sync()

    def blocks(self) -> Iterator[np.ndarray]:
        """Row by row, as its loader reads: each row has its own entry in the JSON file."""
        from logix.logging.mmap import MemoryMapHandler

        paths = sorted(self.folder.glob("*.mmap"), key=lambda path: int(path.stem[4:]))
        for path in paths:
            meta = MemoryMapHandler.read_metafile(str(self.folder), f"{path.stem}_metadata.json")
            with MemoryMapHandler.read(str(self.folder), path.name) as data:
                size = self.width * self.batch.dtype.itemsize
                for entry in meta:
                    offset = entry["offset"]
                    yield np.frombuffer(data[offset : offset + size], self.batch.dtype)

    def gather(self, rows: np.ndarray) -> np.ndarray:
        from logix.logging.mmap import MemoryMapHandler

        paths = sorted(self.folder.glob("*.mmap"), key=lambda path: int(path.stem[4:]))
        size = self.width * self.batch.dtype.itemsize
        where = {}
        for number, path in enumerate(paths):
            meta = MemoryMapHandler.read_metafile(str(self.folder), f"{path.stem}_metadata.json")
            where.update((entry["data_id"], (number, entry["offset"])) for entry in meta)
        maps = [np.memmap(path, np.uint8, "r") for path in paths]
        out = np.empty((len(rows), self.width), self.batch.dtype)
        for i, row in enumerate(rows):
            number, offset = where[str(row)]
            out[i] = maps[number][offset : offset + size].view(self.batch.dtype)
        return out


PEERS = (Arrow, Zarr, Hdf5, Lance, Logix)

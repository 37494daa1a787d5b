"""``TensorBoardSink``: event files, by TensorBoard's own writer, without TensorFlow or torch."""

from __future__ import annotations

import io
import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from sawlog._optional import require
from sawlog._paths import absolute
from sawlog.sinks._tracker import TrackerSink
from sawlog.sinks._values import Kind, TrackerColumn, TrackerGroup, XAxis, bins, pixels

QUEUE = 10_000


class TensorBoardSink(TrackerSink):
    """Write an event file for ``tensorboard --logdir``; each run needs its own folder.

    Steps are the integers of the first step axis, or of the axis ``x``, or else the index of the
    entry; other axes are written as scalars. Numbers of a dtype that ``float32`` represents exactly
    are classic scalars; others are tensors of 64 bits, as TensorFlow 2 writes scalars. TensorBoard
    displays both in the same way; its ``EventAccumulator`` lists the former under ``Scalars`` and
    the latter under ``Tensors``. NaN and infinities are kept. TensorBoard has no status for failed
    runs.

    Args:
        path: the folder of the run; created if missing.
        config: settings to save with the run, under TensorBoard's Text.
        images: whether arrays of two or three axes are images; if not, they are histograms.
        histograms: whether to write histograms; if not, they are dropped.
        x: the step axis for charts; by default, and for logs without it, the first one.

    Raises:
        MissingPackageError: ``tensorboard`` is not installed.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        config: Mapping[str, Any] | None = None,
        images: bool = True,
        histograms: bool = True,
        x: str | XAxis | None = None,
    ) -> None:
        super().__init__(images=images, histograms=histograms, x=x)
        self.path = str(path) if "://" in os.fspath(path) else str(absolute(path))
        self._protos = _Protos(type(self).__name__)
        self.appends = "://" not in self.path and any(Path(self.path).glob("events.out.tfevents.*"))
        self._writer = self._protos.writer(self.path)
        if config:
            text = f"```json\n{json.dumps(config, indent=2, default=str)}\n```"
            self._add([self._protos.text("config", text)], 0, time.time())

    def __repr__(self) -> str:
        return f"TensorBoardSink({self.path!r})"

    def _write_group(self, group: TrackerGroup) -> None:
        now = time.time()
        columns = {**group.columns, **group.others}
        for i, step in enumerate(group.steps):
            made = (self._protos.value(name, column, i) for name, column in columns.items())
            values = [value for value in made if value is not None]
            if values:
                self._add(values, step, now)

    def _add(self, values: list[Any], step: int, now: float) -> None:
        self._writer.add_event(self._protos.event(values, step, now))

    def _flush(self) -> None:
        self._writer.flush()

    def _finish(self, failed: bool) -> None:
        self._writer.flush()  # raises errors of its thread, which close does not
        self._writer.close()


class _Protos:
    """Builders of the protobuf messages in TensorBoard's event files."""

    def __init__(self, needed_by: str) -> None:
        require("tensorboard", "tensorboard", needed_by)

        def module(name: str) -> Any:
            return require(f"tensorboard.{name}", "tensorboard", needed_by)

        self._events = module("compat.proto.event_pb2")
        self._summaries = module("compat.proto.summary_pb2")
        self._tensors = module("compat.proto.tensor_pb2")
        self._shapes = module("compat.proto.tensor_shape_pb2")
        self._types = module("compat.proto.types_pb2")
        self._writers = module("summary.writer.event_file_writer")
        self._scalar = self._about("scalar", module)
        self._histogram = self._about("histogram", module)
        self._image = self._about("image", module)
        self._text = self._about("text", module)

    @staticmethod
    def _about(plugin: str, module: Any) -> Any:
        """Return the metadata that assigns a value to a plugin of TensorBoard."""
        return module(f"plugins.{plugin}.metadata").create_summary_metadata("", "")

    def writer(self, path: str) -> Any:
        """Return the writer of an event file."""
        return self._writers.EventFileWriter(path, max_queue_size=QUEUE, flush_secs=10)

    def event(self, values: list[Any], step: int, now: float) -> Any:
        """Return one record of the file."""
        summary = self._summaries.Summary(value=values)
        return self._events.Event(wall_time=now, step=step, summary=summary)

    def value(self, name: str, column: TrackerColumn, i: int) -> Any:
        """Return one item of a column; None if it has no finite elements."""
        item = column.items[i]
        if column.kind is Kind.IMAGE:
            return self._image_of(name, pixels(item))
        if column.kind is Kind.HISTOGRAM:
            counted = bins(item)
            return None if counted is None else self._histogram_of(name, *counted)
        if column.single:
            return self._summaries.Summary.Value(tag=name, simple_value=item)
        tensor = self._tensor("DT_DOUBLE", (), double_val=[item])
        return self._summaries.Summary.Value(tag=name, metadata=self._scalar, tensor=tensor)

    def _tensor(self, dtype: str, shape: tuple[int, ...], **content: Any) -> Any:
        sizes = [self._shapes.TensorShapeProto.Dim(size=size) for size in shape]
        return self._tensors.TensorProto(
            dtype=getattr(self._types, dtype),
            tensor_shape=self._shapes.TensorShapeProto(dim=sizes),
            **content,
        )

    def _histogram_of(self, name: str, counts: np.ndarray, edges: np.ndarray) -> Any:
        rows = np.stack([edges[:-1], edges[1:], counts], axis=1)
        tensor = self._tensor("DT_DOUBLE", rows.shape, tensor_content=rows.tobytes())
        return self._summaries.Summary.Value(tag=name, metadata=self._histogram, tensor=tensor)

    def _image_of(self, name: str, image: np.ndarray) -> Any:
        file = io.BytesIO()
        require("PIL.Image", "tensorboard", "An image in TensorBoardSink").fromarray(image).save(
            file, format="PNG"
        )
        height, width = image.shape[:2]
        content = [str(width).encode(), str(height).encode(), file.getvalue()]
        tensor = self._tensor("DT_STRING", (3,), string_val=content)
        return self._summaries.Summary.Value(tag=name, metadata=self._image, tensor=tensor)

    def text(self, name: str, text: str) -> Any:
        """Return a text, in Markdown."""
        tensor = self._tensor("DT_STRING", (1,), string_val=[text.encode()])
        return self._summaries.Summary.Value(tag=name, metadata=self._text, tensor=tensor)

"""Turn the items of data sets into examples: texts, images, rows, and pairs with a label."""

from __future__ import annotations

import dataclasses
import io
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sawlog._arrays import to_numpy
from sawlog._optional import require
from sawlog._png import as_bytes, encode_png, is_image
from sawlog.errors import ArgumentError
from sawlog.example_data._example import Example

MOST_TEXT = 20_000  # characters of a text
MOST_FIELD = 1_000  # characters of another column
MOST_ITEMS = 32  # elements of a column that is a list
MOST_TOKENS = 4_096
MOST_PIXELS = 256  # pixels of a side of an image
_TEXTS = ("text", "sentence", "content", "document", "prompt", "question", "input", "premise")
_ENCODED = ("input_ids", "attention_mask", "token_type_ids", "special_tokens_mask")
_PICTURES = ("image", "img", "pixels", "picture")


@dataclasses.dataclass(frozen=True)
class Columns:
    """The names of the columns with the text and the image; None finds them."""

    text: str | None = None
    image: str | None = None


def example_from(item: Any, columns: Columns) -> Example:
    """Return the example that an item of a data set describes."""
    if isinstance(item, Example):
        return item
    if isinstance(item, str):
        return _with_text(Example(), item)
    if isinstance(item, Mapping):
        return _of_columns(item, columns)
    if isinstance(item, tuple) and len(item) == 2:
        found = example_from(item[0], columns)
        return dataclasses.replace(found, fields={**found.fields, "label": _field(item[1])})
    picture = _picture(item)
    if picture is not None:
        return Example(image=picture[0], media_type=picture[1])
    return Example(fields={"value": _field(item)})


def _of_columns(item: Mapping[Any, Any], columns: Columns) -> Example:
    row = {str(name): value for name, value in item.items()}
    text = _chosen("text", columns.text, _TEXTS, row, lambda value: isinstance(value, str))
    image = _chosen("image", columns.image, _PICTURES, row, lambda v: _may_be_picture(v))
    if image is None and columns.image is None:
        image = next((name for name, value in row.items() if _is_pil(value)), None)
    found = Example()
    if text is not None:
        found = _with_text(found, str(row.pop(text)))
    if image is not None:
        picture = _picture(row.pop(image))
        if picture is None:
            raise ArgumentError(f"The column {image!r} does not contain an image.")
        found = dataclasses.replace(found, image=picture[0], media_type=picture[1])
    tokens = row.get("tokens")
    if isinstance(tokens, Sequence) and not isinstance(tokens, str):
        own = [_clean(str(token)) for token in list(row.pop("tokens"))[:MOST_TOKENS]]
        found = dataclasses.replace(found, tokens=tuple(own))
    row.pop("id", None)
    if found.text is not None:
        row = _without_encoding(row)
    return dataclasses.replace(found, fields={_clean(n): _field(v) for n, v in row.items()})


def _without_encoding(row: dict[str, Any]) -> dict[str, Any]:
    """Leave out the text as numbers, which says nothing more: columns of tokenizers."""
    length = _length(row.get("input_ids"))
    same = length is not None and _length(row.get("labels")) == length
    hidden = {*_ENCODED, *(["labels"] if same else [])}
    return {n: v for n, v in row.items() if n not in hidden or _length(v) is None}


def _length(value: Any) -> int | None:
    """Return the length of a list or array; None for anything else."""
    if hasattr(value, "shape"):
        return int(value.shape[0]) if len(value.shape) else None
    return len(value) if isinstance(value, list | tuple) else None


def _chosen(
    what: str, given: str | None, likely: tuple[str, ...], row: Mapping[str, Any], fits: Any
) -> str | None:
    if given is None:
        return next((name for name in likely if name in row and fits(row[name])), None)
    if given not in row:
        listed = ", ".join(map(repr, row))
        raise ArgumentError(f"`{what}` must be a column; got {given!r}. The columns are {listed}.")
    return given


def _with_text(example: Example, text: str) -> Example:
    cut = len(text) > MOST_TEXT
    return dataclasses.replace(example, text=_clean(text[:MOST_TEXT]), cut=cut)


def _clean(text: str) -> str:
    """Replace lone surrogates, which no file can hold."""
    return text.encode("utf-8", "backslashreplace").decode()


def _field(value: Any) -> Any:
    """Return a column in few JSON values: numbers and short texts as they are, arrays cut off."""
    if hasattr(value, "tolist") or hasattr(value, "detach"):
        value = to_numpy(value).tolist()
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, list | tuple):
        items = [_field(each) for each in value[:MOST_ITEMS]]
        return [*items, f"... {len(value)} in all"] if len(value) > MOST_ITEMS else items
    if isinstance(value, Mapping):
        return {str(name): _field(each) for name, each in list(value.items())[:MOST_ITEMS]}
    text = _clean(value if isinstance(value, str) else str(value))
    return text if len(text) <= MOST_FIELD else text[: MOST_FIELD - 3] + "..."


# -- images ---------------------------------------------------------------------------------------


def _is_pil(value: Any) -> bool:
    return hasattr(value, "convert") and hasattr(value, "getbands")


def _may_be_picture(value: Any) -> bool:
    encoded = isinstance(value, Mapping) and isinstance(value.get("bytes"), bytes)
    return encoded or _is_pil(value) or isinstance(value, bytes) or _as_picture(value) is not None


def _picture(value: Any) -> tuple[bytes, str] | None:
    """Return an image as the bytes of a small PNG or JPEG file; None for anything else."""
    if isinstance(value, Mapping) and isinstance(value.get("bytes"), bytes):
        value = value["bytes"]
    if isinstance(value, bytes):
        images: Any = require("PIL.Image", "report", "An encoded image")
        try:
            value = images.open(io.BytesIO(value))
            value.load()
        except Exception as error:  # of many kinds, by the format of the image
            raise ArgumentError(f"An image cannot be decoded: {error}.") from None
    if _is_pil(value):
        return _small(value)
    array = _as_picture(value)
    return None if array is None else (encode_png(array, MOST_PIXELS), "image/png")


def _as_picture(value: Any) -> np.ndarray | None:
    """Return an array as an image ``[h, w]`` or ``[h, w, c]``; channels may come first."""
    if not hasattr(value, "shape") or not hasattr(value, "dtype"):
        return None
    array = to_numpy(value)
    if array.ndim == 3 and array.shape[0] in (1, 3, 4) and array.shape[2] not in (1, 3, 4):
        array = np.moveaxis(array, 0, -1)
    if array.ndim == 3 and array.shape[2] == 1:
        array = array[..., 0]
    if not is_image(array):
        return None
    return as_bytes(array)


def _small(picture: Any) -> tuple[bytes, str]:
    """Re-encode an image, so that nothing but its pixels is stored."""
    kept = picture.convert("RGBA" if "A" in picture.getbands() else "RGB")
    if max(kept.size) > MOST_PIXELS:
        kept.thumbnail((MOST_PIXELS, MOST_PIXELS))
    data = io.BytesIO()
    if kept.mode == "RGB" and kept.size[0] * kept.size[1] > 64 * 64:
        kept.save(data, "JPEG", quality=85)
        return data.getvalue(), "image/jpeg"
    kept.save(data, "PNG")
    return data.getvalue(), "image/png"

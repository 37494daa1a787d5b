"""Encode arrays as PNG images, with nothing but numpy and zlib."""

from __future__ import annotations

import struct
import zlib

import numpy as np

_COLOUR_TYPES = {1: 0, 3: 2, 4: 6}


def is_image(array: np.ndarray) -> bool:
    """Return whether an array has the shape of an image: ``[h, w]`` or ``[h, w, 1, 3 or 4]``.

    >>> is_image(np.zeros((8, 8))), is_image(np.zeros((8, 8, 3))), is_image(np.zeros(8))
    (True, True, False)
    """
    if array.ndim not in (2, 3) or array.dtype.kind not in "biuf" or min(array.shape[:2]) < 2:
        return False
    return array.ndim == 2 or array.shape[2] in _COLOUR_TYPES


def encode_png(array: np.ndarray, most: int = 256) -> bytes:
    """Encode an image as PNG; larger ones than ``most`` pixels a side keep every n-th pixel.

    ``uint8`` values are used as they are. Floats that are all from 0 to 1 are scaled to 255, and
    any other values so that the least finite one is black and the greatest white.

    >>> encode_png(np.eye(4))[:8]
    b'\\x89PNG\\r\\n\\x1a\\n'
    """
    pixels = as_bytes(array[:: _stride(array.shape[0], most), :: _stride(array.shape[1], most)])
    pixels = pixels.reshape(*pixels.shape[:2], -1)
    height, width, channels = pixels.shape
    lines = np.zeros((height, 1 + width * channels), np.uint8)  # each line starts with its filter
    lines[:, 1:] = pixels.reshape(height, -1)
    header = struct.pack(">IIBBBBB", width, height, 8, _COLOUR_TYPES[channels], 0, 0, 0)
    parts = [(b"IHDR", header), (b"IDAT", zlib.compress(lines.tobytes(), 6)), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, data) for kind, data in parts)


def as_bytes(array: np.ndarray) -> np.ndarray:
    """Return the pixels of an image as ``uint8``."""
    if array.dtype == np.uint8:
        return np.ascontiguousarray(array)
    if array.dtype.kind == "b":
        return array.astype(np.uint8) * 255
    values = array.astype(np.float64)
    finite = values[np.isfinite(values)]
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 1.0)
    if array.dtype.kind == "f" and low >= 0 and high <= 1:
        low, high = 0.0, 1.0
    scaled = (values - low) / ((high - low) or 1.0)
    return np.round(255 * np.nan_to_num(np.clip(scaled, 0, 1), nan=0.0)).astype(np.uint8)


def _stride(size: int, most: int) -> int:
    return max(1, -(-size // most))


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

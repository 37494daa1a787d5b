"""PNG files that are made with numpy alone, read by another library."""

import io

import numpy as np
import pytest
from PIL import Image

from sawlog._png import as_bytes, encode_png, is_image


def read(data: bytes) -> np.ndarray:
    """The pixels of a PNG file; the library checks its checksums."""
    return np.asarray(Image.open(io.BytesIO(data)))


@pytest.mark.parametrize("shape", [(3, 5), (5, 3), (4, 6, 3), (6, 4, 4), (2, 7, 1)])
def test_pixels_come_back_where_they_were(shape):
    pixels = np.random.default_rng(0).integers(0, 256, shape).astype(np.uint8)
    found = read(encode_png(pixels))
    np.testing.assert_array_equal(found, pixels[..., 0] if shape[2:] == (1,) else pixels)


@pytest.mark.parametrize(("most", "every"), [(20, 1), (19, 2), (10, 2), (9, 3), (7, 3)])
def test_larger_images_keep_every_nth_pixel(most, every):
    pixels = np.arange(200, dtype=np.uint8).reshape(20, 10)
    found = read(encode_png(pixels, most))
    across = 1 if most >= 10 else 2
    np.testing.assert_array_equal(found, pixels[::every, ::across])
    assert max(found.shape) <= most


@pytest.mark.parametrize(
    ("values", "wanted"),
    [
        (np.array([[0.0, 0.5], [0.25, 0.75]]), [[0, 128], [64, 191]]),  # not 1, and 1 is white
        (np.array([[0.5, 0.5], [0.5, 0.5]]), [[128, 128], [128, 128]]),
        (np.array([[-1.0, 1.0], [0.0, np.nan]]), [[0, 255], [128, 0]]),
        (np.array([[0.0, 4.0], [1.0, 2.0]]), [[0, 255], [64, 128]]),
        (np.array([[1, 1], [1, 1]]), [[0, 0], [0, 0]]),  # the least of integers is black
        (np.array([[0, 1], [1, 0]]), [[0, 255], [255, 0]]),
        (np.array([[10, 20], [30, 20]], np.int16), [[0, 128], [255, 128]]),
        (np.array([[True, False], [False, True]]), [[255, 0], [0, 255]]),
        (np.array([[np.nan, np.inf], [-np.inf, np.nan]]), [[0, 255], [0, 0]]),
    ],
)
def test_which_values_are_black_and_white(values, wanted):
    assert as_bytes(values).tolist() == wanted


@pytest.mark.parametrize(
    ("shape", "dtype", "wanted"),
    [
        ((2, 2), "f4", True),
        ((2, 2, 2), "f4", False),
        ((1, 9), "f4", False),
        ((9, 1, 3), "u1", False),
        ((2, 2, 3), "c8", False),
        ((2, 2, 3, 1), "u1", False),
    ],
)
def test_what_is_an_image(shape, dtype, wanted):
    assert is_image(np.zeros(shape, dtype)) is wanted

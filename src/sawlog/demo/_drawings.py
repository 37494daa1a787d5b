"""Drawn digits, some with a wrong label: data for the demo that needs no download."""

from __future__ import annotations

import dataclasses

import numpy as np

SIDE = 12
ANNOTATORS = ("A", "B", "C", "D")
CARELESS, WRONG = "D", 0.4  # who labels, and the share of wrong labels

# The strokes of a seven-segment display, as (row, column) of both ends.
_STROKES = {
    "top": ((2, 3), (2, 8)),
    "middle": ((5, 3), (5, 8)),
    "bottom": ((9, 3), (9, 8)),
    "left above": ((2, 3), (5, 3)),
    "right above": ((2, 8), (5, 8)),
    "left below": ((5, 3), (9, 3)),
    "right below": ((5, 8), (9, 8)),
}
_OFF = {  # the strokes that a digit lacks
    0: ("middle",),
    1: ("top", "middle", "bottom", "left above", "left below"),
    2: ("left above", "right below"),
    3: ("left above", "left below"),
    4: ("top", "bottom", "left below"),
    5: ("right above", "left below"),
    6: ("right above",),
    7: ("middle", "bottom", "left above", "left below"),
    8: (),
    9: ("left below",),
}


@dataclasses.dataclass(frozen=True)
class Digits:
    """Images ``[n, SIDE, SIDE]`` with values from 0 to 1, the labels given, and the true ones."""

    images: np.ndarray
    labels: np.ndarray
    truth: np.ndarray
    annotators: np.ndarray

    @property
    def wrong(self) -> np.ndarray:
        """Which labels are wrong."""
        return self.labels != self.truth

    def described(self) -> list[dict[str, object]]:
        """Return what each example looks like, for ``run.describe``."""
        columns = zip(self.images, self.labels, self.annotators, strict=True)
        return [
            {
                "image": (255 * np.kron(image, np.ones((4, 4)))).astype(np.uint8),
                "label": int(label),
                "annotator": str(who),
            }
            for image, label, who in columns
        ]


def draw_digits(count: int, seed: int, careless: bool) -> Digits:
    """Draw digits; if ``careless``, one annotator gives many wrong labels."""
    random = np.random.default_rng(seed)
    truth = random.permutation(np.arange(count) % 10)
    images = np.stack([_drawn(int(digit), random) for digit in truth]).astype(np.float32)
    annotators = np.array(ANNOTATORS)[np.arange(count) % len(ANNOTATORS)]
    wrong = (annotators == CARELESS) & (random.random(count) < WRONG) & careless
    other = (truth + random.integers(1, 10, count)) % 10
    return Digits(images, np.where(wrong, other, truth), truth, annotators)


def _drawn(digit: int, random: np.random.Generator) -> np.ndarray:
    image = np.zeros((SIDE, SIDE))
    for name, (start, end) in _STROKES.items():
        if name in _OFF[digit]:
            continue
        points = np.linspace(start, end, 12) + random.normal(0, 0.35, 2)
        rows, columns = np.rint(points).astype(int).T.clip(0, SIDE - 1)
        image[rows, columns] = random.uniform(0.6, 1)
    image = np.roll(image, int(random.integers(0, 2)), 1)
    return np.clip(image + random.normal(0, 0.15, image.shape), 0, 1)

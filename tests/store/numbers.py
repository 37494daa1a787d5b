"""Logs that are functions of a number, so that whatever is found in a store can be checked.

`write_numbers` writes rows of two tables and entries of two series for each number; `Expected`
says what a store with the first so many numbers must have in it.
"""

import dataclasses

import ml_dtypes
import numpy as np

from sawlog.records import Entries, Records

NAMES = ["grad", "label", "text", "loss", "act"]


def grads(numbers, width=3):
    numbers = np.asarray(numbers, np.int64)
    mixed = (numbers[:, None] * width + np.arange(width)) * 2654435761 % (1 << 24)
    return mixed.astype(np.float32)


def text_id(number):
    return "" if number == 0 else f"Beispiel-ä{number}"


def act_of(numbers):
    """Which numbers have an entry of `act`, and its values, steps, mask and notes."""
    logged = np.asarray(numbers)[np.asarray(numbers) % 3 != 2]
    pairs = np.stack([logged, -logged], 1)
    noted = logged % 3 == 0
    values = np.where(noted[:, None], logged[:, None], pairs).astype(ml_dtypes.bfloat16)
    mask = np.stack([np.ones(len(logged), bool), ~noted | (logged % 2 == 0)], 1)
    notes = [{"site": f"line {n // 6}"} if n % 3 == 0 else {} for n in logged.tolist()]
    return values, pairs, mask, notes


def write_numbers(writer, numbers):
    numbers = np.asarray(numbers)
    writer.append(numbers, {"grad": grads(numbers), "label": numbers.astype(np.int16)})
    writer.append([text_id(number) for number in numbers], {"text": numbers.astype("<M8[s]")})
    for number in numbers.tolist():
        writer.log({"loss": number / 2}, step=number, epoch=number // 10)
        values, steps, mask, notes = act_of([number])
        if number % 3 == 0:
            writer.write(Records({"act": Entries(values, {"step": steps}, mask, notes[0])}))
        elif number % 3 == 1:
            writer.extend({"act": values}, step=steps)


@dataclasses.dataclass(frozen=True)
class Expected:
    """What a store must have that `write_numbers` wrote these numbers to."""

    numbers: np.ndarray

    @property
    def texts(self):
        return [text_id(number) for number in self.numbers.tolist()]

    @property
    def columns(self):
        values, *_ = act_of(self.numbers)
        return {
            "grad": grads(self.numbers),
            "label": self.numbers.astype(np.int16),
            "text": self.numbers.astype("<M8[s]"),
            "loss": self.numbers / 2,
            "act": values,
        }

    @property
    def steps(self):
        _, pairs, _, _ = act_of(self.numbers)
        return {
            "loss": {"step": self.numbers, "epoch": self.numbers // 10},
            "act": {"step": pairs},
        }

    @property
    def mask(self):
        return act_of(self.numbers)[2]

    @property
    def notes(self):
        return {"loss": [{}] * len(self.numbers), "act": act_of(self.numbers)[3]}


def expected(numbers):
    return Expected(np.asarray(numbers, np.int64))

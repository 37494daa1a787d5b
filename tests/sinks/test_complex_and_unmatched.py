"""Complex numbers take two columns each; patterns that match nothing are said once."""

import csv
import warnings

import numpy as np
import pytest

from sawlog.errors import UnmatchedNameWarning
from sawlog.records import Entries, Records
from sawlog.sinks import CsvSink, MemorySink, Reduce, Select
from sawlog.sinks._values import groups


def test_csv_masks_and_steps_of_complex_items(tmp_path):
    values = np.array([[1 + 2j, 3 + 4j, 5 + 6j]], np.complex64)
    entries = Entries(values, {"step": np.array([[7, 8, 9]])}, np.array([[True, False, True]]))
    with CsvSink(tmp_path / "x.csv") as sink:
        sink.write(Records({"x": entries}))
    rows = list(csv.reader((tmp_path / "x.csv").read_text().splitlines()))
    assert rows[0] == ["name", "step", "value"]
    found = {(name, step): float(value) for name, step, value in rows[1:]}
    assert found == {
        ("x[0].real", "7"): 1.0,
        ("x[0].imag", "7"): 2.0,
        ("x[2].real", "9"): 5.0,
        ("x[2].imag", "9"): 6.0,
    }


def test_entries_of_complex_numbers_are_counted_on():
    """Trackers count columns: those of a complex number have names of their own."""
    records = Records({"z": Entries(np.array([1 + 2j, 3 + 4j]))})
    counts = {"z/real": 5, "z/imag": 5, "z": 1}
    (group,) = groups(records, counts, images=True, histograms=True)
    assert list(group.steps) == [5, 6]
    assert group.columns["z/imag"].items == [2.0, 4.0]


@pytest.mark.parametrize("end", ["flush", "close"])
@pytest.mark.parametrize(
    "around",
    [
        lambda sink, names: Select(sink, names),
        lambda sink, names: Select(sink, exclude=names),
        lambda sink, names: Reduce(sink, 2, {**dict.fromkeys(names, "last"), "*": "mean"}),
    ],
    ids=["select", "exclude", "reduce"],
)
def test_only_patterns_that_match_nothing_are_said(around, end):
    memory = MemorySink()
    sink = around(memory, ["train/*", "evil/*"])
    sink.write(Records({"train/loss": Entries(np.ones(2)), "eval/loss": Entries(np.ones(2))}))
    with pytest.warns(UnmatchedNameWarning) as caught:
        getattr(sink, end)()
    (said,) = caught
    assert "'evil/*'" in str(said.message)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sink.close()

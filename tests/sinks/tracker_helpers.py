"""What real trackers have on disk, read by their own tools."""

import itertools

import numpy as np

from sawlog.records import Entries, Records

numbers = itertools.count()


def records(steps, **values):
    axes = {axis: np.asarray(array) for axis, array in steps.items()}
    return Records({name: Entries(np.asarray(array), axes) for name, array in values.items()})


def written(tracker, *many, failed=False, **options):
    """What the tracker has of a new run after these records, one write each."""
    sink = tracker.open(f"run-{next(numbers)}", **options)
    for each in many:
        sink.write(each)
    if failed:
        sink.fail()
    sink.close()
    return tracker.read(sink)

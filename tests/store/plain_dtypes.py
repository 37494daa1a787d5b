"""Dtypes as FORMAT.md describes them."""

import re

import numpy as np

NAMED = re.compile(r"bool|u?int(8|16|32|64)|float(16|32|64)|complex(64|128)")


def dtype_of(described):
    """The numpy type; None if numpy has none."""
    if isinstance(described, list):
        return _structured(described)
    if NAMED.fullmatch(described) or described[0] in "<|":
        return np.dtype(described)
    return None


def _structured(described):
    """Fields one after the other; one without a name is room between others."""
    names, formats, offsets, size = [], [], [], 0
    for name, type, *shape in described:
        format = np.dtype((dtype_of(type), tuple(*shape)))
        if name:
            names.append(name)
            formats.append(format)
            offsets.append(size)
        size += format.itemsize
    return np.dtype({"names": names, "formats": formats, "offsets": offsets, "itemsize": size})

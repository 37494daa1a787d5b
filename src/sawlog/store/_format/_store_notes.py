"""What other parts of sawlog note in a store: in its ``meta``, and in the ``attrs`` of series.

The store keeps such notes as they are, and they may be from another program.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from sawlog.errors import DamagedStoreError, SawlogError

_WRONG = (
    AttributeError,
    AssertionError,
    LookupError,
    OverflowError,
    RecursionError,
    TypeError,
    ValueError,
)


@contextlib.contextmanager
def parsing(path: str | os.PathLike[str], what: str) -> Iterator[None]:
    """Parse notes of a store in the block; notes of another form are damage.

    Raises:
        DamagedStoreError: a value is missing, or is of another type than it was written with.
    """
    try:
        yield
    except SawlogError:
        raise
    except _WRONG as error:
        about = f"{what} not as sawlog writes them ({type(error).__name__}: {str(error)[:100]!r})"
        raise DamagedStoreError(
            f"The store at {os.fspath(path)} has {about}. Hint: write it again; "
            "sawlog.store.open(path) reads its values.",
            what=about,
        ) from error

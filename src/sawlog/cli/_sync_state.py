"""What ``sawlog sync`` has sent so far: a small file for each store and destination."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

from sawlog._atomic import replacing
from sawlog.errors import ArgumentError
from sawlog.store._format._json_files import reason_of
from sawlog.store._format._loose_json import read_loose_json


def default_folder() -> Path:
    """Return the folder of these files: ``sawlog/sync`` in the user's folder for state."""
    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(base) / "sawlog" / "sync"


class SyncState:
    """How many entries of each name of a store were sent to one destination.

    Args:
        folder: where these files are.
        store: the id of the store.
        destination: what tells destinations apart.

    Raises:
        ArgumentError: the file cannot be read.
    """

    def __init__(self, folder: Path, store: str, destination: str) -> None:
        digest = hashlib.blake2b(f"{store}\0{destination}".encode(), digest_size=12).hexdigest()
        self.path = folder / f"{digest}.json"
        self.sent: dict[str, int] = {}
        self.run_id: str | None = None
        try:
            said = read_loose_json(folder, self.path.name)
            self.sent = {str(name): int(count) for name, count in said["sent"].items()}
            self.run_id = said["run_id"]
        except FileNotFoundError:
            pass
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise ArgumentError(
                f"{self.path} does not say what was sent: {reason_of(error)}. "
                "Hint: remove it to send everything again."
            ) from None

    def save(self) -> None:
        """Write the file."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        said: dict[str, Any] = {"sent": self.sent, "run_id": self.run_id}
        with replacing(self.path) as file:
            file.write(json.dumps(said).encode())

"""Access to the files of a store: a small protocol, and its implementation for a local folder.

The rest of the store does not touch files. An object store would be a second implementation of
:class:`Disk`.
"""

from sawlog.store._disk._local import SMALL as SMALL
from sawlog.store._disk._local import LocalDisk as LocalDisk
from sawlog.store._disk._locks import system_id as system_id
from sawlog.store._disk._protocol import Blob as Blob
from sawlog.store._disk._protocol import Disk as Disk
from sawlog.store._disk._protocol import FileStatus as FileStatus
from sawlog.store._disk._protocol import Lease as Lease
from sawlog.store._disk._protocol import Mapped as Mapped
from sawlog.store._disk._protocol import Upload as Upload

"""Where the files of a store are: one small protocol, and the folder of a local disk behind it.

Nothing else in the store touches a file. An object store would be a second implementation of
:class:`Disk`.
"""

from sawlog.store._disk._local import SMALL as SMALL
from sawlog.store._disk._local import LocalDisk as LocalDisk
from sawlog.store._disk._protocol import Blob as Blob
from sawlog.store._disk._protocol import Disk as Disk
from sawlog.store._disk._protocol import Lease as Lease
from sawlog.store._disk._protocol import Mapped as Mapped
from sawlog.store._disk._protocol import Status as Status
from sawlog.store._disk._protocol import Upload as Upload

"""Files of a store with anything in them and right checksums: what a stranger could send.

Knows json, struct and a hash function, and nothing of sawlog.
"""

import json
import struct
from dataclasses import dataclass
from pathlib import Path

import xxhash

hash_of = xxhash.xxh3_64_intdigest


def sealed(said):
    """An object, or the text of one, as a JSON file whose last key is its checksum."""
    if not isinstance(said, str):
        said = json.dumps({key: item for key, item in said.items() if key != "checksum"})
    body = said.rstrip().removesuffix("}").rstrip()
    comma = "" if body.endswith("{") else ","
    text = body + comma + '\n "checksum": "' + "0" * 16 + '"\n}\n'
    before, _, after = text.rpartition("0" * 16)
    return f"{before}{hash_of(text.encode()):016x}{after}".encode()


@dataclass
class Forged:
    """The parts of a segment, to be changed and put together again."""

    document: dict  # without the description
    said: dict  # the description
    data: bytes  # all tensors but the checksums
    hashes: bytes  # those of blocks and spans

    @classmethod
    def of(cls, file):
        data = Path(file).read_bytes()
        (length,) = struct.unpack_from("<Q", data)
        document = json.loads(data[8 : 8 + length])
        said = json.loads(document.pop("__metadata__")["sawlog"])
        begin, end = (8 + length + n for n in document.pop("sawlog.checksums")["data_offsets"])
        return cls(document, said, data[8 + length : begin], data[begin + 8 : end - 8])

    def bytes(self, text=None):
        """The file; ``text`` in place of the header's own JSON."""
        size = len(self.hashes) + 16
        checksums = {
            "dtype": "U8",
            "shape": [size],
            "data_offsets": [len(self.data), len(self.data) + size],
        }
        if text is None:
            metadata = {"__metadata__": {"sawlog": json.dumps(self.said)}}
            text = json.dumps(metadata | self.document | {"sawlog.checksums": checksums})
        raw = text.encode("utf-8", "surrogatepass")
        raw += b" " * (-(len(raw) + 8) % 64)
        header = struct.pack("<Q", len(raw)) + raw
        tail = struct.pack("<Q", hash_of(header)) + self.hashes
        return header + self.data + tail + struct.pack("<Q", hash_of(tail))

"""``Example``: the text, image and fields of one example, and its bytes in a store."""

from __future__ import annotations

import dataclasses
import json
import struct
from collections.abc import Mapping, Sequence
from typing import Any

from sawlog.errors import DamagedStoreError

MEDIA_TYPES = ("image/png", "image/jpeg")
_LENGTH = struct.Struct("<I")


@dataclasses.dataclass(frozen=True)
class Example:
    """What one example looks like.

    Args:
        text: its text.
        tokens: the tokens of the text, as the model was given them.
        image: an encoded image.
        media_type: of the image, one of ``"image/png"`` and ``"image/jpeg"``.
        fields: other columns, as JSON values; a label, for example.
        cut: whether the text was longer, and is cut off.
    """

    text: str | None = None
    tokens: Sequence[str] = ()
    image: bytes | None = None
    media_type: str = ""
    fields: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    cut: bool = False

    def __repr__(self) -> str:
        parts = [f"text={self.text!r}"] if self.text is not None else []
        parts += [f"tokens={list(self.tokens)!r}"] if self.tokens else []
        parts += [f"image={len(self.image):,} bytes"] if self.image else []
        parts += [f"fields={dict(self.fields)!r}"] if self.fields else []
        return f"Example({', '.join(parts)})"

    @property
    def line(self) -> str:
        """The example in one line of text: its text, and its fields in brackets behind it."""
        fields = ", ".join(f"{name}={value}" for name, value in self.fields.items())
        fields = f"[{fields}]" if fields and self.text else fields
        parts = [self.text or "", fields, "(image)" if self.image and not self.text else ""]
        return "  ".join(" ".join(part.split()) for part in parts if part)

    def to_bytes(self) -> bytes:
        """Encode the example: a length, JSON of that length, and the bytes of the image."""
        said: dict[str, Any] = {"text": self.text, "fields": dict(self.fields)}
        said |= {"tokens": list(self.tokens)} if self.tokens else {}
        said |= {"media_type": self.media_type} if self.image else {}
        said |= {"cut": True} if self.cut else {}
        head = json.dumps(said, ensure_ascii=False, separators=(",", ":")).encode()
        return _LENGTH.pack(len(head)) + head + (self.image or b"")

    @classmethod
    def from_bytes(cls, data: bytes) -> Example:
        """Decode what :meth:`to_bytes` returned.

        Raises:
            DamagedStoreError: the bytes are not those of an example.
        """
        try:
            (length,) = _LENGTH.unpack_from(data)
            said = json.loads(data[_LENGTH.size : _LENGTH.size + length])
            image = data[_LENGTH.size + length :] or None
            media_type = said.get("media_type", "")
            if image is not None and media_type not in MEDIA_TYPES:
                raise ValueError(f"an image of the type {media_type!r}")
            text = said["text"]
            if not isinstance(text, str | None) or not isinstance(said["fields"], dict):
                raise ValueError("fields of other types")
            tokens = tuple(map(str, said.get("tokens", ())))
            return cls(text, tokens, image, media_type, said["fields"], bool(said.get("cut")))
        except (struct.error, ValueError, KeyError, TypeError, AttributeError) as error:
            raise DamagedStoreError(
                f"A stored example cannot be read: {error}. Hint: describe the data again."
            ) from None

"""Write all drawings."""

from __future__ import annotations

from pathlib import Path

from tools.drawings import PICTURES

FOLDER = Path(__file__).parents[2] / "docs" / "drawings"


def main() -> None:
    """Write one file for each picture, and remove those that are no longer drawn."""
    FOLDER.mkdir(exist_ok=True)
    for old in FOLDER.glob("*.svg"):
        if old.stem not in PICTURES:
            old.unlink()
    for name, picture in PICTURES.items():
        (FOLDER / f"{name}.svg").write_text(picture(), encoding="utf-8")
        print(name)


if __name__ == "__main__":
    main()

"""Open an address in the user's browser, if there is one to see."""

from __future__ import annotations

import os
import sys
import webbrowser


def open_in_browser(address: str) -> bool:
    """Open an address in a browser with a window; return whether one was found.

    Without a screen, Python would start a browser in the terminal.
    """
    if sys.platform.startswith("linux") and not (
        os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    ):
        return False
    try:
        return webbrowser.open(address)
    except webbrowser.Error:
        return False

"""What the tests of pages do in a browser."""

import os
import time

PATIENCE_MS = int(os.environ.get("SAWLOG_BROWSER_MS", "120000"))


def show(page, view):
    page.click(f"#tab-{view}")
    page.wait_for_selector(f"#panel[aria-labelledby=tab-{view}] .card")


def until(page, condition):
    """Wait for a condition; `page.wait_for_function` needs what the policy of the page forbids."""
    limit = time.monotonic() + PATIENCE_MS / 1000
    while not page.evaluate(condition):
        assert time.monotonic() < limit, condition
        page.wait_for_timeout(50)


def eventually(page, call, expected):
    """Wait until a call returns what is expected; a change is drawn in the next frame."""
    limit = time.monotonic() + PATIENCE_MS / 1000
    while (found := call()) != expected:
        assert time.monotonic() < limit, found
        page.wait_for_timeout(50)

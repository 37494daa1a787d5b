"""A real browser for the tests of pages; started only by tests that use it."""

import shutil

import pytest

from tests.report.pages import PATIENCE_MS


@pytest.fixture(scope="module")
def browser():
    from playwright.sync_api import sync_playwright

    path = shutil.which("chromium") or shutil.which("chromium-browser")
    assert path, "there is no chromium. Hint: make test-browser installs it"
    with sync_playwright() as player:
        started = player.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture
def opened(browser):
    """``opened(address, ...)`` opens a page on which no error and no foreign request may happen."""
    problems, contexts = [], []

    def open_page(address, theme="light", width=1280, touch=False):
        context = browser.new_context(
            viewport={"width": width, "height": 900},
            color_scheme=theme,
            accept_downloads=True,
            has_touch=touch,
            is_mobile=touch,
        )
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(PATIENCE_MS)
        home = address.split("#")[0].rpartition("/")[0]

        def requested(request):
            if not request.url.startswith((home, "data:", "blob:")):
                problems.append(f"request of {request.url[:200]}")

        def printed(message):
            if message.type in ("error", "warning"):
                problems.append(message.text)

        page.on("console", printed)
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("request", requested)
        page.goto(address)
        page.wait_for_selector("#panel")
        return page

    yield open_page
    found = [page.evaluate("window.pwned") for context in contexts for page in context.pages]
    for context in contexts:
        context.close()
    assert problems == []
    assert set(found) <= {None}

"""``view_app``: the live page of a folder, for this computer alone and for reading alone.

Every address begins with a random token. Requests with another token, another ``Host`` than the
loopback address, or an ``Origin`` of another page are refused. Nothing outside the folder is read,
and nothing is written.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sawlog._optional import require
from sawlog._paths import absolute
from sawlog.errors import ArgumentError, StoreNotFoundError
from sawlog.report._encode import safe_json
from sawlog.report._live_source import LiveSource
from sawlog.report._page import live_html, plotly_script, script, style
from sawlog.report._source import PageOptions

LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; connect-src 'self'; "
    "img-src 'self' data: blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_NEEDS = "sawlog view"


def new_token() -> str:
    """Return a random token for the address of a page."""
    return secrets.token_urlsafe(24)


def view_app(folder: str | os.PathLike[str], token: str, port: int) -> Any:
    """Return the application that shows the runs under a folder while they are running.

    Args:
        folder: the folder; nothing outside of it is read.
        token: the first part of every address.
        port: the port at which the application is served, to check the header ``Host``.

    Raises:
        StoreNotFoundError: the folder does not exist.
        MissingPackageError: Starlette is not installed.
    """
    applications: Any = require("starlette.applications", "view", _NEEDS)
    responses: Any = require("starlette.responses", "view", _NEEDS)
    routing: Any = require("starlette.routing", "view", _NEEDS)
    place = absolute(folder)
    if not place.is_dir():
        what = "is a file" if place.exists() else "does not exist"
        raise StoreNotFoundError(f"{place} {what}. Hint: give a folder that has runs in it.")
    options = PageOptions(title=place.name or str(place), fit=False)
    source = LiveSource(place, options)
    base = f"/{token}/"

    def text(content: str, kind: str) -> Any:
        return responses.Response(content, media_type=kind, headers=HEADERS)

    def part(request: Any) -> Any:
        try:
            found = source.part(request.path_params["name"])
        except KeyError:
            return responses.Response("There is no such part.", 404, headers=HEADERS)
        return text(safe_json(found), "application/json")

    routes = [
        routing.Route(base, lambda _: text(live_html(options.title, base), "text/html")),
        routing.Route(f"{base}page.css", lambda _: text(style(), "text/css")),
        routing.Route(f"{base}page.js", lambda _: text(script(), "text/javascript")),
        routing.Route(f"{base}plotly.js", lambda _: text(plotly_script(), "text/javascript")),
        routing.Route(base + "data/{name:path}", part),
    ]
    return Guard(applications.Starlette(routes=routes), base, port, responses)


class Guard:
    """Refuses requests that do not come from the page itself, before anything else runs."""

    def __init__(self, app: Any, base: str, port: int, responses: Any) -> None:
        self._app, self._base, self._responses = app, base, responses
        self._hosts = {f"{name}:{port}" for name in LOOPBACK}

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer a request."""
        if scope["type"] == "lifespan":
            return await self._app(scope, receive, send)
        refused = self._refusal(scope)
        if refused is None:
            return await self._app(scope, receive, send)
        if scope["type"] == "http":
            answer = self._responses.Response("Refused.", refused, headers=HEADERS)
            return await answer(scope, receive, send)
        return None

    def _refusal(self, scope: Any) -> int | None:
        """Return the status with which a request is refused; None if it is allowed."""
        headers: dict[str, list[str]] = {}
        for name, value in scope.get("headers", ()):
            headers.setdefault(name.decode("latin-1").lower(), []).append(value.decode("latin-1"))
        hosts = headers.get("host", [])
        if len(hosts) != 1 or hosts[0].lower() not in self._hosts:
            return 421
        allowed = {f"http://{host}" for host in self._hosts}
        if any(origin.lower() not in allowed for origin in headers.get("origin", ())):
            return 403
        if any(site not in ("same-origin", "none") for site in headers.get("sec-fetch-site", ())):
            return 403
        if scope["type"] != "http" or scope["method"] not in ("GET", "HEAD"):
            return 405
        sent = scope["path"].encode()[: len(self._base)]
        if not secrets.compare_digest(sent, self._base.encode()):
            return 404
        return None


def loopback_socket(port: int) -> socket.socket:
    """Return a socket that listens at the loopback address; port 0 chooses a free one.

    Raises:
        ArgumentError: the port is in use.
    """
    bound = socket.socket()
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind(("127.0.0.1", port))
        bound.listen(128)  # before anyone is told the address: a browser may be quicker than us
    except (OSError, OverflowError) as error:
        bound.close()
        why = str(error).rstrip(".")
        raise ArgumentError(
            f"Port {port} cannot be used: {why}. Hint: --port 0 chooses a free one."
        ) from None
    return bound


def make_server(folder: Path, port: int = 0) -> tuple[Any, socket.socket, str]:
    """Return a server, its socket, and the address of the page."""
    uvicorn: Any = require("uvicorn", "view", _NEEDS)
    for package in ("plotly", "jinja2"):
        require(package, "view", _NEEDS)
    bound = loopback_socket(port)
    try:
        own, token = int(bound.getsockname()[1]), new_token()
        app = view_app(folder, token, own)
        # Without log_config=None, uvicorn closes the log handlers of the program that it runs in.
        config = uvicorn.Config(
            app, log_config=None, log_level="warning", access_log=False, server_header=False
        )
    except BaseException:
        bound.close()
        raise
    return uvicorn.Server(config), bound, f"http://127.0.0.1:{own}/{token}/"


@contextlib.contextmanager
def served(folder: Path) -> Iterator[str]:
    """Serve a folder from a thread inside the block, and give the address of the page."""
    server, bound, address = make_server(folder)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]}, daemon=True)
    thread.start()
    try:
        yield address
    finally:
        server.should_exit = True
        thread.join(30)
        bound.close()

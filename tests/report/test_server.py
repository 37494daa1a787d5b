"""The live page answers itself and nobody else, reads its folder alone, and writes nothing."""

import json
import logging
import os
import socket

import numpy as np
import pytest
from starlette.testclient import TestClient

import sawlog.store
from sawlog.errors import StoreNotFoundError
from sawlog.report import view_app
from sawlog.report._server import loopback_socket, make_server
from tests.report.runs import make_failed

TOKEN, PORT = "secret-token", 8123
HOME = f"http://127.0.0.1:{PORT}"


@pytest.fixture
def root(tmp_path):
    make_failed(tmp_path / "runs", steps=5)
    return tmp_path / "runs"


@pytest.fixture
def client(root):
    return TestClient(view_app(root, TOKEN, PORT), base_url=HOME)


def test_the_page_and_its_data(client, root):
    page = client.get(f"/{TOKEN}/")
    assert page.status_code == 200
    assert f'data-base="/{TOKEN}/"' in page.text
    assert "<script>" not in page.text
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "script-src 'self';" in policy
    assert page.headers["cache-control"] == "no-store"
    index = client.get(f"/{TOKEN}/data/index").json()
    assert [run["name"] for run in index["runs"]] == ["diverged"]
    assert index["live"]
    curves = client.get(f"/{TOKEN}/data/curves/{index['runs'][0]['id']}").json()
    assert [series["name"] for series in curves["series"]] == ["loss"]
    for name in ("page.css", "page.js"):
        assert client.get(f"/{TOKEN}/{name}").status_code == 200


REFUSED = {
    "no token": ("GET", "/", {}, 404),
    "another token": ("GET", "/secret-tokem/", {}, 404),
    "a part of the token": ("GET", "/secret/", {}, 404),
    "another host": ("GET", f"/{TOKEN}/", {"host": f"evil.example:{PORT}"}, 421),
    "another port": ("GET", f"/{TOKEN}/", {"host": "127.0.0.1:1"}, 421),
    "another origin": ("GET", f"/{TOKEN}/data/index", {"origin": "https://evil.example"}, 403),
    "null origin": ("GET", f"/{TOKEN}/data/index", {"origin": "null"}, 403),
    "cross site": ("GET", f"/{TOKEN}/", {"sec-fetch-site": "cross-site"}, 403),
    "post": ("POST", f"/{TOKEN}/data/index", {}, 405),
    "delete": ("DELETE", f"/{TOKEN}/", {}, 405),
    "unknown part": ("GET", f"/{TOKEN}/data/nothing", {}, 404),
    "unknown run": ("GET", f"/{TOKEN}/data/curves/0000", {}, 404),
    "a path": ("GET", f"/{TOKEN}/data/curves/..%2f..%2fetc%2fpasswd", {}, 404),
    "a file": ("GET", f"/{TOKEN}/../../etc/passwd", {}, 404),
    "no such address": ("GET", f"/{TOKEN}/other", {}, 404),
}


@pytest.mark.parametrize("case", REFUSED)
def test_everything_else_is_refused(client, case):
    method, path, headers, status = REFUSED[case]
    answer = client.request(method, path, headers=headers)
    assert answer.status_code == status
    assert "diverged" not in answer.text


@pytest.mark.parametrize("name", ["127.0.0.1", "localhost", "LOCALHOST", "[::1]"])
def test_names_of_the_loopback_address_are_allowed(client, name):
    headers = {"host": f"{name}:{PORT}", "origin": HOME, "sec-fetch-site": "same-origin"}
    assert client.get(f"/{TOKEN}/data/index", headers=headers).status_code == 200


def files(root):
    return {
        os.path.join(here, name): os.stat(os.path.join(here, name)).st_mtime_ns
        for here, _, names in os.walk(root)
        for name in names
    }


def test_looking_writes_nothing_and_does_not_follow_links(tmp_path, root, client, monkeypatch):
    monkeypatch.setattr("sawlog.report._live_source._FRESH", 0.0)
    outside = tmp_path / "outside"
    with sawlog.store.create(outside / "secret") as writer:
        writer.log({"loss": 1.0}, step=0)
    (outside / "run.json").write_text('{"options": {"secret": 1}, "blocks": []}')
    (root / "link").symlink_to(outside, target_is_directory=True)
    (root / "run").mkdir()
    for part in ("logs", "metrics", "curvature", "scores", "data"):
        (root / "run" / part).symlink_to(outside, target_is_directory=True)
    (root / "run" / "run.json").symlink_to(outside / "run.json")
    with sawlog.store.create(root / "rows" / "logs" / "whole", interval=None) as writer:
        writer.append([1, 2], {"grad/w": np.diag([1.0, 3.0])})
    before = files(root)
    index = client.get(f"/{TOKEN}/data/index").json()
    assert [run["name"] for run in index["runs"]] == ["diverged", "rows", "run"]
    rows = client.get(f"/{TOKEN}/data/labels/{index['runs'][1]['id']}").json()
    assert (rows["curvature"], [row["id"] for row in rows["rows"]]) == ("identity", [2, 1])
    assert "secret" not in json.dumps(index["runs"][2])
    for run in index["runs"]:
        for kind in ("curves", "arrays", "store", "labels"):
            answer = client.get(f"/{TOKEN}/data/{kind}/{run['id']}")
            assert answer.status_code == 200
            assert "secret" not in answer.text
    assert files(root) == before


def test_runs_that_appear_and_grow_are_seen(client, root, monkeypatch):
    monkeypatch.setattr("sawlog.report._live_source._FRESH", 0.0)
    with sawlog.store.create(root / "new", interval=None) as writer:
        writer.log({"loss": 1.0}, step=0)
        writer.flush()

        def seen():
            runs = client.get(f"/{TOKEN}/data/index").json()["runs"]
            (run,) = [run for run in runs if run["name"] == "new"]
            part = client.get(f"/{TOKEN}/data/curves/{run['id']}").json()
            return run["state"], part["series"][0]["last"]

        assert seen() == ("writing", 1.0)
        writer.log({"loss": 0.5}, step=1)
        writer.flush()
        assert seen() == ("writing", 0.5)
    assert seen() == ("closed", 0.5)


def test_a_folder_without_runs_waits_for_them(tmp_path):
    client = TestClient(view_app(tmp_path, TOKEN, PORT), base_url=HOME)
    assert client.get(f"/{TOKEN}/data/index").json()["runs"] == []
    with pytest.raises(StoreNotFoundError, match="does not exist"):
        view_app(tmp_path / "none", TOKEN, PORT)


def test_odd_names_are_data(tmp_path):
    with sawlog.store.create(tmp_path / "</script><b>") as writer:
        writer.extend({"<b>": np.arange(3.0)}, step=np.arange(3))
    client = TestClient(view_app(tmp_path, TOKEN, PORT), base_url=HOME)
    answer = client.get(f"/{TOKEN}/data/index")
    assert "<" not in answer.text
    assert json.loads(answer.text)["runs"][0]["name"] == "</script><b>"


def test_handlers_of_the_program_stay_open(tmp_path):
    """A server in a notebook must not close what the program logs to."""

    class Handler(logging.Handler):
        closed = False

        def close(self):
            self.closed = True
            super().close()

    handler = Handler()
    _, bound, _ = make_server(tmp_path)
    bound.close()
    assert not handler.closed


def test_a_browser_may_be_quicker_than_the_server():
    with loopback_socket(0) as bound, socket.create_connection(bound.getsockname(), timeout=10):
        pass

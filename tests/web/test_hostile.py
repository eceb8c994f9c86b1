"""Hostile input to a real server: it gives a clear answer and stays up."""

import os
import pickle
import signal
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

import httpx
import pytest

from tests.web.fixtures import running
from weightloom.web import PageSettings, create_app


@pytest.fixture(scope="module")
def app(tmp_path_factory):
    """A page that takes little, so that too much is soon reached."""
    folder = tmp_path_factory.mktemp("small")
    return create_app(
        PageSettings(store=folder / "results.sqlite", cache_dir=folder, upload_limit=10**6, queue=4)
    )


@pytest.fixture(scope="module")
def small(app):
    with running(None, app) as address:
        yield address


@pytest.fixture
def worker(app):
    return app.state.context.worker


def alive(address):
    return httpx.get(f"{address}/api/about", timeout=60).status_code == 200


def image():
    return [0.0] * 20 + [1.0] * 8 + [0.0] * 36


def test_a_huge_upload_is_refused_while_it_arrives(small):
    def endless():
        for _ in range(40):
            yield b"\0" * 10**6

    answer = httpx.post(f"{small}/api/compare/upload", content=endless(), timeout=60)
    assert answer.status_code == 413
    assert "1 MB" in answer.json()["error"]
    assert alive(small)


def test_a_body_that_never_ends_does_not_hold_the_server(small):
    """Half a request, then silence: others are answered meanwhile."""
    at = urlsplit(small)
    with socket.create_connection((at.hostname, at.port)) as open_one:
        open_one.sendall(
            f"POST /api/compare/upload HTTP/1.1\r\nHost: {at.netloc}\r\n"
            "Content-Length: 900000\r\n\r\nabc".encode()
        )
        assert alive(small)
    assert alive(small)


@pytest.mark.parametrize(
    "request_",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET /static/../../../../etc/passwd HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: -5\r\n\r\n",
    ],
)
def test_requests_that_are_none(small, request_):
    at = urlsplit(small)
    with socket.create_connection((at.hostname, at.port), timeout=60) as raw:
        raw.sendall(request_)
        answer = raw.recv(4096)
    assert b"root:" not in answer
    assert not answer or b" 4" in answer.split(b"\r\n")[0]
    assert alive(small)


def test_a_pickle_is_never_opened(client, server, tmp_path):
    class Trap:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "executed"),)

    data = pickle.dumps(Trap())
    key = client.post("/api/compare/upload", content=data).json()["key"]
    files = {"files": [{"key": key, "name": "model.safetensors"}]}
    answer = client.post("/api/compare/inspect", json=files)
    assert answer.status_code == 422
    assert not (tmp_path / "executed").exists()


def test_keys_of_uploads_are_not_paths(client):
    for key in ("../../etc/passwd", "/etc/passwd", "", "0" * 32):
        answer = client.post("/api/compare/inspect", json={"files": [{"key": key, "name": "a"}]})
        assert answer.status_code == 422
        assert "root:" not in answer.text


def test_twenty_at_once_are_answered_or_asked_to_wait(small):
    asked = {"image": image(), "part": "all"}
    httpx.get(f"{small}/api/draw/example", timeout=120)  # the worker is up

    def post(_):
        return httpx.post(f"{small}/api/draw/kernel", json=asked, timeout=120)

    with ThreadPoolExecutor(20) as pool:
        answers = list(pool.map(post, range(20)))
    statuses = [answer.status_code for answer in answers]
    assert set(statuses) <= {200, 429}
    assert statuses.count(200) >= 5  # one works, four wait
    assert len({answer.text for answer in answers if answer.status_code == 200}) == 1
    for answer in answers:
        if answer.status_code == 429:
            assert "try again in a moment" in answer.json()["error"]
    assert post(0).status_code == 200


def test_a_killed_worker_gives_a_clear_answer_and_comes_back(small, worker):
    assert httpx.get(f"{small}/api/draw/example", timeout=120).status_code == 200
    os.kill(worker.pid, signal.SIGSTOP)  # so that it cannot be done before it is killed

    def kill():
        while worker._waiting == 0:
            time.sleep(0.01)
        time.sleep(1)  # the request goes from there to the process
        os.kill(worker.pid, signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    answer = httpx.get(f"{small}/api/draw/example", timeout=120)
    killer.join()
    assert answer.status_code == 503
    assert "a new one answers the next request" in answer.json()["error"]
    assert httpx.get(f"{small}/api/draw/example", timeout=120).status_code == 200

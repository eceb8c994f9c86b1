"""Who may ask, how much a request may carry, what every response says. No worker is started."""

import json
import os

import pytest
from starlette.testclient import TestClient

from weightloom.web import PageSettings, create_app
from weightloom.web.guard import POLICY


def page(**settings):
    return TestClient(
        create_app(PageSettings(**settings)),
        base_url="http://localhost",
        raise_server_exceptions=False,
    )


@pytest.fixture(scope="module")
def local():
    return page(json_limit=1000, upload_limit=5000)


# -- names and origins -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "host", ["localhost", "localhost:8421", "127.0.0.1:9", "[::1]:8421", "LOCALHOST"]
)
def test_localhost_names_are_answered(local, host):
    assert local.get("/api/about", headers={"host": host}).status_code == 200


@pytest.mark.parametrize(
    "host",
    ["evil.example", "localhost.evil.example", "evil.example:8421", "127.0.0.1.nip.io", "", "[::1"],
)
def test_other_names_are_refused(local, host):
    """A foreign site can point its name at 127.0.0.1; its scripts would then share our origin."""
    answer = local.get("/api/about", headers={"host": host})
    assert answer.status_code == 421
    assert "localhost only" in answer.json()["error"]


def test_a_host_that_was_given_is_served_under_any_name():
    answer = page(any_host=True).get("/api/about", headers={"host": "lab.example"})
    assert answer.status_code == 200


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "null", "http://localhost:1", "http://localhost.evil.example"]
)
def test_other_origins_are_refused(local, origin):
    answer = local.post("/api/draw/start", json={}, headers={"origin": origin})
    assert answer.status_code == 403
    assert "another site" in answer.json()["error"]


def test_requests_that_a_browser_calls_foreign_are_refused(local):
    for site in ("cross-site", "same-site"):
        answer = local.get("/api/about", headers={"sec-fetch-site": site})
        assert answer.status_code == 403
    assert local.get("/", headers={"sec-fetch-site": "cross-site"}).status_code == 200  # a link


def test_the_own_origin_is_answered(local):
    answer = local.get("/api/about", headers={"origin": "http://localhost"})
    assert answer.status_code == 200
    assert "access-control-allow-origin" not in answer.headers


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "OPTIONS", "HEAD", "TRACE"])
def test_other_methods_are_refused(local, method):
    for path in ("/api/about", "/static/app.js"):  # files would answer HEAD by themselves
        answer = local.request(method, path)
        assert answer.status_code == 405
        assert method == "HEAD" or "use GET or POST" in answer.text


# -- headers ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path", ["/", "/static/app.js", "/api/about", "/nowhere", "/api/draw/kernel", "/docs"]
)
def test_every_response_has_the_headers(local, path):
    headers = local.get(path).headers
    assert headers["content-security-policy"] == POLICY
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["x-frame-options"] == "DENY"
    assert headers["referrer-policy"] == "no-referrer"
    refused = local.get(path, headers={"host": "evil.example"}).headers
    assert refused["content-security-policy"] == POLICY


def test_the_policy_allows_no_inline_code_and_no_other_host():
    assert "unsafe" not in POLICY
    assert "http" not in POLICY
    assert POLICY.startswith("default-src 'none'")
    page_text = page().get("/").text
    assert "<style" not in page_text
    assert " style=" not in page_text
    assert " on" not in page_text.replace(" on ", "")
    assert "<script>" not in page_text
    assert "http" not in page_text  # nothing is loaded from elsewhere


def test_there_is_no_generated_documentation(local):
    for path in ("/docs", "/redoc", "/openapi.json"):
        assert local.get(path).status_code == 404


# -- bodies ----------------------------------------------------------------------------------------


def test_a_body_that_says_it_is_too_large_is_refused_unread(local):
    answer = local.post("/api/draw/kernel", content=b"x" * 1001)
    assert answer.status_code == 413
    assert "0.001 MB" in answer.json()["error"]


def chunks(count, size=500):
    for _ in range(count):
        yield b" " * size


def test_bodies_are_counted_whatever_their_header_says(local):
    assert local.post("/api/draw/kernel", content=chunks(3)).status_code == 413
    lying = local.post("/api/draw/kernel", content=chunks(3), headers={"content-length": "10"})
    assert lying.status_code == 413
    assert local.post("/api/draw/kernel", content=chunks(2)).status_code == 422  # no drawing


def test_uploads_may_be_larger(local):
    assert local.post("/api/compare/upload", content=chunks(8)).status_code == 200
    answer = local.post("/api/compare/upload", content=chunks(11))
    assert answer.status_code == 413
    assert "0.005 MB" in answer.json()["error"]


def test_a_refused_upload_leaves_nothing_behind():
    here = page(upload_limit=5000)
    folder = here.app.state.context.uploads
    here.post("/api/compare/upload", content=chunks(1))
    here.post("/api/compare/upload", content=chunks(11))
    assert len(os.listdir(folder._folder)) == 1
    folder.close()
    assert folder._folder is None


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"\xff\xfe",
        b'{"image": "draw", "part": "top"}',
        json.dumps({"image": [0.0] * 63, "part": "top"}).encode(),
        json.dumps({"image": [2.0] * 64, "part": "top"}).encode(),
        json.dumps({"image": [float("nan")] * 64, "part": "top"}).encode(),
        json.dumps({"image": [float("inf")] * 64, "part": "top"}).encode(),
        json.dumps({"image": [1.0] * 64, "part": "../../etc/passwd"}).encode(),
        b"[" * 900,
    ],
)
def test_bodies_that_make_no_sense_are_explained(body):
    answer = page().post(
        "/api/draw/kernel", content=body, headers={"content-type": "application/json"}
    )
    assert answer.status_code == 422
    assert set(answer.json()) == {"error"}
    assert "Traceback" not in answer.text


# -- files -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    [
        "/static/../app.py",
        "/static/%2e%2e/app.py",
        "/static/..%2fapp.py",
        "/static/..%5capp.py",
        "/static//etc/passwd",
        "/static/%2fetc%2fpasswd",
        "/static/vendor/../../settings.py",
        "/static/app.js%00.css",
        "/static/",
        "/static/vendor",
        "/../pyproject.toml",
        "//etc/passwd",
    ],
)
def test_only_the_pages_own_files_are_served(local, path):
    answer = local.get(path)
    assert answer.status_code in (404, 405)
    assert answer.json() == {"error": "there is nothing at this address"}


def test_links_out_of_the_folder_are_not_followed(tmp_path, monkeypatch):
    from weightloom.web import app

    secret = tmp_path / "secret.txt"
    secret.write_text("secret")
    static = tmp_path / "static"
    static.mkdir()
    (static / "index.html").write_text("page")
    (static / "link.txt").symlink_to(secret)
    monkeypatch.setattr(app, "STATIC", static)
    assert page().get("/static/link.txt").status_code == 404
    assert page().get("/static/index.html").text == "page"


def test_an_unforeseen_error_is_logged_and_not_shown(monkeypatch, caplog):
    here = page()

    async def broken(*arguments):
        raise RuntimeError("a secret of the machine")

    monkeypatch.setattr(here.app.state.context, "run", broken)
    answer = here.get("/api/draw/example")
    assert answer.status_code == 500
    assert answer.json() == {"error": "an unexpected error on the server; its log has the details"}
    assert "a secret of the machine" in caplog.text


def test_no_telemetry_whatever_the_environment_says(monkeypatch):
    """FastAPI can be told by the environment to send traces elsewhere."""
    monkeypatch.setenv("FASTAPI_OTEL_AUTO_CONFIGURE", "true")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    app = create_app(PageSettings())
    config = getattr(app, "_telemetry", None)
    if config is None:
        pytest.skip("this FastAPI has no telemetry")
    assert not any(config[name] for name in ("auto_configure", "tracing", "metrics", "logs"))

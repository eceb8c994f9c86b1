"""The page for tests of both packages: a real server, a client, a real browser.

A plugin of the root conftest.py, so that both packages share one server and one browser.
"""

import contextlib
import threading
import time

import pytest

from tests.web.browser import chromium
from weightloom.web import PageSettings, create_app


@contextlib.contextmanager
def running(settings, app=None):
    """A server on a free port, in a thread; gives its address. Its workers are real processes."""
    import uvicorn

    app = app or create_app(settings)
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=0, log_level="warning"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        assert thread.is_alive(), "the server ended before it answered"
        time.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join()


@pytest.fixture(scope="session")
def page_settings(tmp_path_factory):
    """Settings whose folders are the tests' own."""
    folder = tmp_path_factory.mktemp("page")
    return PageSettings(store=folder / "results.sqlite", cache_dir=folder / "cache", draw_epochs=1)


@pytest.fixture(scope="session")
def server(page_settings):
    """The address of a running page."""
    with running(page_settings) as address:
        yield address


@pytest.fixture(scope="session")
def client(server):
    """Requests to the running page, as its own scripts would send them."""
    import httpx

    with httpx.Client(base_url=server, timeout=120) as session:
        yield session


@pytest.fixture(scope="session")
def chrome():
    sync_api = pytest.importorskip("playwright.sync_api")
    with sync_api.sync_playwright() as playwright:
        browser = chromium.launch(playwright)
        yield browser
        browser.close()


@pytest.fixture
def expected_errors():
    """Texts of console errors that a test brings about on purpose; empty unless it fills it."""
    return []


@pytest.fixture
def page(chrome, server, expected_errors):
    """An open laptop-sized page; the test fails if it errs, breaks its policy or asks elsewhere."""
    context = chrome.new_context(
        base_url=server, viewport={"width": 1280, "height": 800}, accept_downloads=True
    )
    opened = context.new_page()
    problems = chromium.watch(opened, server)
    yield opened
    context.close()
    assert [
        text for text in problems if not any(expected in text for expected in expected_errors)
    ] == []

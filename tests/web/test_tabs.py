"""Which tabs the page has: the library's own, and those of installed packages."""

from __future__ import annotations

import logging

import pytest
from starlette.testclient import TestClient

from tests.plugins import alone as alone
from tests.plugins import install
from weightloom.errors import MissingDependencyError
from weightloom.web import PageSettings, create_app
from weightloom.web.tabs import LIBRARY
from weightloom.web.tabs.sizes import answer_for

TAB = """
from pathlib import Path
from fastapi import APIRouter

TITLE = "Weather"
STATIC = Path(__file__).parent / "files"

def router(context):
    routes = APIRouter()

    @routes.get("/today")
    async def today() -> str:
        return "rain"

    return routes
"""


@pytest.fixture
def visit(tmp_path):
    """Open the page as it would be now, without its workers."""

    def opened():
        settings = PageSettings(store=tmp_path / "results.sqlite", cache_dir=tmp_path / "cache")
        return TestClient(create_app(settings), base_url="http://localhost")

    return opened


def names(page):
    return [tab["name"] for tab in page.get("/api/about").json()["tabs"]]


@pytest.mark.usefixtures("alone")
def test_every_script_is_served(visit):
    page = visit()
    assert names(page) == list(LIBRARY)
    for tab in page.get("/api/about").json()["tabs"]:
        answer = page.get(tab["script"])
        assert answer.status_code == 200
        assert "javascript" in answer.headers["content-type"]
        assert "export async function mount(" in answer.text or "export function mount(" in (
            answer.text
        )


@pytest.mark.usefixtures("alone")
def test_the_library_alone_has_no_results(visit):
    page = visit()
    assert names(page) == list(LIBRARY)
    assert page.get("/api/results/runs").status_code == 404
    assert page.get("/static/tabs/results/results.js").status_code == 404
    for path in ("/", "/static/app.js", "/static/index.html"):
        assert "results" not in page.get(path).text.lower()


def test_a_tab_of_another_package(visit, tmp_path, monkeypatch):
    install(tmp_path, "[weightloom.tabs]\nweather = weather_tab\n", weather_tab=TAB)
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "weather.js").write_text("export function mount() {}")
    monkeypatch.syspath_prepend(tmp_path)
    page = visit()
    (tab,) = [each for each in page.get("/api/about").json()["tabs"] if each["name"] == "weather"]
    assert tab == {
        "name": "weather",
        "title": "Weather",
        "script": "/static/tabs/weather/weather.js",
    }
    assert page.get("/api/weather/today").json() == "rain"
    assert page.get(tab["script"]).text == "export function mount() {}"


def test_a_broken_tab_is_left_out(visit, tmp_path, monkeypatch, caplog):
    install(tmp_path, "[weightloom.tabs]\nweather = broken_tab\n", broken_tab="TITLE = 'Rain'\n")
    monkeypatch.syspath_prepend(tmp_path)
    with caplog.at_level(logging.WARNING):
        page = visit()
    assert "weather" not in names(page)
    assert "the tab weather of broken_tab is left out" in caplog.text


@pytest.mark.usefixtures("alone")
def test_measured_constants_need_the_papers(tmp_path):
    assert answer_for((1, 1, 1, 0.1, None), None)["can_calibrate"] is False
    with pytest.raises(
        MissingDependencyError, match=r"come with the package weightloom-papers.*constants of 1"
    ):
        answer_for((1, 1, 1, 0.1, None), tmp_path / "results.sqlite")

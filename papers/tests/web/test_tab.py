"""The Results tab as the library's page finds it: listed last, with its scripts and styles."""

from __future__ import annotations

import pytest
from starlette.testclient import TestClient

from weightloom.web import PageSettings, create_app
from weightloom.web.tabs import LIBRARY


@pytest.fixture
def page(tmp_path):
    """The page without its workers."""
    settings = PageSettings(store=tmp_path / "results.sqlite", cache_dir=tmp_path / "cache")
    return TestClient(create_app(settings), base_url="http://localhost")


def test_the_tab_follows_those_of_the_library(page):
    tabs = page.get("/api/about").json()["tabs"]
    assert [tab["name"] for tab in tabs] == [*LIBRARY, "results"]
    assert tabs[-1]["title"] == "Results"


def test_its_script_is_served(page):
    answer = page.get(page.get("/api/about").json()["tabs"][-1]["script"])
    assert answer.status_code == 200
    assert "javascript" in answer.headers["content-type"]
    assert "export async function mount(" in answer.text


@pytest.mark.parametrize("name", ["results_view.js", "results.css"])
def test_further_files_are_served_beside_it(page, name):
    assert page.get(f"/static/tabs/results/{name}").status_code == 200

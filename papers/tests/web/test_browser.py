"""Results in a real browser, and the exported page without any server."""

import json

import pytest
from tests.web.browser.visit import fits, visit

from papers.tests.web import stores


@pytest.fixture(scope="module")
def filled(page_settings):
    if not page_settings.store.exists():
        stores.fill(page_settings.store)


def open_tab(page):
    page.goto("/#results")
    page.wait_for_selector("#panel-results[data-ready=true]")
    return page.locator("#panel-results")


def count(panel):
    return panel.locator("table.runs tbody tr:not(.more)").count()


def use_filters(page, panel):
    """What works on the page and in the exported file alike."""
    assert count(panel) == 8
    panel.get_by_label("Ended").select_option("diverged")
    assert count(panel) == 1
    assert panel.locator(".ended.diverged").count() == 1
    panel.get_by_label("Ended").select_option("")
    panel.get_by_label("Scale").select_option("smoke")
    assert count(panel) == 5
    panel.get_by_label("Scale").select_option("")
    panel.get_by_label("Search settings").fill("function=smooth d=3")
    panel.get_by_text("1 of 8 runs").wait_for()
    panel.get_by_label("Search settings").fill("")
    panel.get_by_text("8 of 8 runs").wait_for()
    panel.get_by_role("button", name="seconds").click()
    assert panel.locator("th[aria-sort=descending]").inner_text().startswith("seconds")
    assert panel.locator("table.runs tbody tr").first.locator("td").nth(2).inner_text() == (
        f"model={stores.HOSTILE} depth=2"
    )
    panel.locator(".open").first.click()
    panel.locator(".detail svg.plot g[aria-label=line] path").wait_for()  # its curve
    assert "0123456789abcdef" in panel.locator(".detail").inner_text()
    assert page.title() != "owned"
    assert panel.locator("img[src=x]").count() == 0


def test_runs_figures_and_the_exported_file(page, filled, chrome, tmp_path):
    panel = open_tab(page)
    panel.locator("select:not([disabled])").nth(1).wait_for()
    use_filters(page, panel)
    panel.get_by_label("Experiment").select_option(stores.EXPERIMENT)
    panel.get_by_text("The paper (depth-separation").wait_for()
    panel.get_by_role("button", name="Draw from the store").click()
    panel.locator("img.figure").wait_for()
    assert panel.locator("img.figure").evaluate("image => image.decode().then(() => true)")
    panel.get_by_text("Scale smoke, all 5 runs.").wait_for()
    with page.expect_download() as caught:  # another worker has to start
        panel.get_by_role("button", name="Export this page").click()
    file = tmp_path / caught.value.suggested_filename
    caught.value.save_as(file)
    with visit(chrome, file.as_uri(), width=390, height=844) as alone:
        alone.goto(file.as_uri())
        alone.wait_for_selector("#results[data-ready=true]")
        offline = alone.locator("#results")
        use_filters(alone, offline)
        offline.get_by_label("Experiment").select_option(stores.EXPERIMENT)
        offline.locator("img.figure").wait_for()
        assert fits(alone)


def test_without_a_store(chrome, server):
    with visit(chrome, server) as page:
        answer = {"missing": True, "store": "none.sqlite", "command": "weightloom reproduce x"}
        page.route("**/api/results/runs", lambda route: route.fulfill(body=json.dumps(answer)))
        panel = open_tab(page)
        panel.get_by_text("There is no store at none.sqlite").wait_for()
        panel.get_by_text("weightloom reproduce x").wait_for()


def test_constants_that_were_not_measured(chrome, server):
    """*Which model?* offers measured constants, and says how to get them."""
    with visit(chrome, server, width=390, height=844, refused=True) as page:
        page.goto("/#sizes")
        page.wait_for_selector("#panel-sizes[data-ready=true]")
        panel = page.locator("#panel-sizes")
        panel.get_by_label("Use constants measured").check()
        panel.get_by_text("weightloom reproduce modularity/rates --scale laptop").wait_for()
        assert fits(page)

"""Kernels in a real browser: exact curves, networks drawn width by width, K^(r)."""

import pytest

from tests.web.browser.chromium import LONG


@pytest.fixture
def tab(page):
    page.goto("/#kernels")
    page.wait_for_selector("#panel-kernels[data-ready=true]")
    return page.locator("#panel-kernels .tab")


def line(tab):
    """The exact curve."""
    return tab.locator(".curves .chart").first.locator("[aria-label=line] path")


def test_the_curve_follows_the_controls(tab):
    from playwright.sync_api import expect  # here, where the browser is; it may be missing

    before = line(tab).get_attribute("d")
    choose = tab.locator(".curves").get_by_label("Activation of g")
    with tab.page.expect_response("**/api/kernels/exact"):
        choose.select_option("sin")
    expect(line(tab)).not_to_have_attribute("d", before, timeout=LONG)
    # Observable Plot brings style elements, which the policy forbids: none may be left.
    assert tab.locator("style").count() == 0


def test_networks_are_sampled_and_their_spread_is_shown(tab):
    widest = tab.get_by_role("slider", name="Largest width")
    widest.focus()
    tab.page.keyboard.press("Home")
    assert widest.get_attribute("aria-valuetext") == "16"
    tab.get_by_role("button", name="Sample networks").click()
    tab.get_by_text("The spread falls like").wait_for()
    tab.locator(".curves progress").wait_for(state="detached")
    chart = tab.locator(".curves .chart").first
    assert chart.locator("[aria-label=dot] circle").count() >= 18  # 9 angles for each width
    assert "width 16" in chart.inner_text()


def test_exponents_are_measured_beside_the_theorem(tab):
    tab.get_by_role("button", name="Measure").click()
    tab.locator(".taylor table").wait_for()
    tab.locator(".taylor progress").wait_for(state="detached")
    rows = tab.locator(".taylor tbody tr").all_inner_texts()
    assert [row.split("\t")[-1] for row in rows] == ["0", "0", "-1", "-2"]
    assert all("±" in row for row in rows)


def test_a_refusal_is_shown_where_it_was_asked(tab, expected_errors):
    expected_errors.append("status of 422")
    for name in ("Depth of f, L", "Depth of g, H", "Largest width", "Networks of each width"):
        tab.locator(".curves").get_by_role("slider", name=name).focus()
        tab.page.keyboard.press("End")

    def refuse(route):
        route.fulfill(status=422, json={"error": "take narrower networks"})

    tab.page.route("**/api/kernels/sampled", refuse)
    tab.get_by_role("button", name="Sample networks").click()
    error = tab.locator(".curves .status.error")
    error.wait_for()
    assert "take narrower networks" in error.inner_text()

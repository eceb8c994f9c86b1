"""Pieces and constructions in a real browser."""

from pathlib import Path

import pytest
from safetensors.torch import load

from tests.web.browser.visit import fits, visit


def open_tab(page):
    page.goto("/#constructions")
    page.wait_for_selector("#panel-constructions[data-ready=true]")
    return page.locator("#panel-constructions")


def fact(panel, name):
    return panel.locator(f"dt:has-text('{name}') + dd").first


def test_a_slider_builds_another_network(page):
    panel = open_tab(page)
    assert fact(panel, "affine pieces").inner_text() == "16"
    assert "holds" in fact(panel, "error measured").inner_text()
    assert panel.locator("svg.network circle").count() == 1 + 2 + 3 * 3 + 1
    panel.get_by_label("hidden layers").focus()
    page.keyboard.press("ArrowRight")
    panel.locator("dd:text-is('32')").wait_for()
    assert panel.locator("svg.network circle").count() == 1 + 2 + 3 * 4 + 1


def test_two_variables_and_a_network_too_large_to_draw(page):
    panel = open_tab(page)
    panel.get_by_label("Network", exact=True).select_option("grid")
    panel.get_by_text("too large to draw every unit").wait_for()
    assert panel.locator("svg.plot image").count() >= 3  # function, network, error


def test_the_download_is_the_network(page):
    panel = open_tab(page)
    panel.get_by_label("Network", exact=True).select_option("bump")
    panel.locator("dd:text-is('3')").first.wait_for()
    with page.expect_download() as caught:
        panel.get_by_role("button", name="Download the network").click()
    assert caught.value.suggested_filename == "bump.safetensors"
    assert load(Path(caught.value.path()).read_bytes())["0.weight"].shape == (3, 1)


@pytest.mark.parametrize("dark", [False, True])
def test_on_a_phone(chrome, server, dark):
    scheme = "dark" if dark else "light"
    with visit(chrome, server, width=390, height=844, color_scheme=scheme) as page:
        panel = open_tab(page)
        for name in ("random", "partition", "box"):
            with page.expect_response(lambda r, name=name: f"/view/{name}" in r.url):
                panel.get_by_label("Network", exact=True).select_option(name)
            page.wait_for_timeout(50)
            assert fits(page)

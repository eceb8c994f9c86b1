"""Drawing in a real browser: by mouse, by keyboard, with downloads."""

import pytest

from weightloom.demo import coordinate_network
from weightloom.hyper import load


@pytest.fixture
def tab(page):
    page.goto("/#draw")
    page.wait_for_selector("#panel-draw[data-ready=true]")
    page.wait_for_selector("#panel-draw .tab[data-state=answered]")
    return page.locator("#panel-draw .tab")


def picture(tab, title):
    """The pixels of a picture, as the browser shows them."""
    canvas = tab.locator(".card", has=tab.page.get_by_role("heading", name=title, exact=True))
    return canvas.locator("canvas.picture").evaluate("c => c.toDataURL()")


def clear(tab):
    tab.get_by_role("button", name="Clear").click()
    tab.page.wait_for_selector("#panel-draw .tab[data-state=empty]")


def answered(tab):
    tab.page.wait_for_selector("#panel-draw .tab[data-state=answered]")


def test_a_drawing_by_mouse_is_completed(tab):
    first = picture(tab, "Kernel")
    clear(tab)
    pad = tab.locator("canvas.pad").bounding_box()

    def at(x, y):
        return pad["x"] + pad["width"] * x, pad["y"] + pad["height"] * y

    mouse = tab.page.mouse
    mouse.move(*at(0.5, 0.05))
    mouse.down()
    mouse.move(*at(0.5, 0.45), steps=8)
    mouse.up()
    answered(tab)
    assert picture(tab, "Kernel") != first
    assert "in the hidden part" in tab.inner_text()


def test_a_drawing_by_keyboard_is_completed(tab):
    clear(tab)
    before = picture(tab, "Kernel")
    pad = tab.locator("canvas.pad")
    pad.focus()
    for _ in range(2):
        tab.page.keyboard.press("Space")
        tab.page.keyboard.press("ArrowUp")
    assert "Row 1, column 4: blank." in tab.inner_text()
    tab.page.keyboard.press("Space")
    answered(tab)
    assert "Row 1, column 4: painted." in tab.inner_text()
    assert picture(tab, "Kernel") != before
    for _ in range(7):
        tab.page.keyboard.press("ArrowDown")
    assert "hidden." in tab.inner_text()  # the models see the top half
    tab.page.keyboard.press("Space")
    assert "painted" not in tab.locator("[aria-live]").filter(has_text="Row").inner_text()


def test_the_network_draws_and_can_be_downloaded(tab, tmp_path):
    tab.page.wait_for_selector("#panel-draw .tab[data-trained=true]")
    answered(tab)
    pictures = tab.locator("canvas.picture")
    side = pictures.first.get_attribute("data-side")
    assert side == "32"
    slider = tab.get_by_role("slider", name="Resolution")
    slider.focus()
    tab.page.keyboard.press("Home")
    tab.locator("canvas.picture[data-side='8']").nth(2).wait_for()
    assert slider.get_attribute("aria-valuetext") == "8 × 8"
    for kind in ("safetensors", "ONNX"):
        with tab.page.expect_download() as waiting:
            tab.get_by_role("button", name=kind).click()
        file = tmp_path / waiting.value.suggested_filename
        waiting.value.save_as(file)
        assert file.name == f"digit.{kind.lower()}"
        if kind == "ONNX":
            onnx = pytest.importorskip("onnx")
            onnx.checker.check_model(onnx.load(file))
        else:
            assert sum(p.numel() for p in load(coordinate_network(), file).parameters()) == 561


def test_a_server_that_has_ended_is_reported_in_the_page(tab, expected_errors):
    expected_errors.append("net::ERR_FAILED")
    tab.page.route("**/api/draw/example*", lambda route: route.abort())
    tab.get_by_role("button", name="Show me a digit").click()
    error = tab.locator(".status.error").filter(has_text="weightloom serve")
    error.wait_for()
    assert error.is_visible()

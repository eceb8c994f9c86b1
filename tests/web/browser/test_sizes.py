"""Which model? in a real browser."""

from tests.web.browser.visit import fits, visit


def open_tab(page):
    page.goto("/#sizes")
    page.wait_for_selector("#panel-sizes[data-ready=true]")


def test_numbers_follow_the_controls(page):
    open_tab(page)
    panel = page.locator("#panel-sizes")
    panel.get_by_text("about 100 parameters, 100 times fewer").wait_for()
    assert panel.locator("svg.plot path").count() >= 4  # a line for each kind of network
    panel.get_by_role("slider", name="Largest error").focus()
    page.keyboard.press("ArrowLeft")  # 0.01 -> 0.005
    panel.get_by_text("about 200 parameters").wait_for()
    panel.get_by_label("Numbers that decide the weights").fill("2")
    panel.get_by_text("hypernetwork: all of f").wait_for()


def test_errors_are_shown_and_the_page_goes_on(chrome, server):
    with visit(chrome, server, width=390, height=844, refused=True) as page:
        open_tab(page)
        panel = page.locator("#panel-sizes")
        panel.get_by_label("Numbers in an input x").fill("0")
        panel.get_by_text("m1: Input should be greater than or equal to 1").wait_for()
        panel.get_by_label("Numbers in an input x").fill("2")
        panel.get_by_text("about 10,000 parameters").wait_for()
        panel.get_by_text("m1: Input should be").wait_for(state="detached")
        assert fits(page)

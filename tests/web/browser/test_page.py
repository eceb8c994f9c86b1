"""The page as a whole in a real browser: tabs, keys, a phone's width. The fixture `page` also fails
a test when the browser logs an error, the content policy is broken or another host is asked."""

import pytest

from tests.plugins import alone as alone
from tests.web.browser.visit import visit
from tests.web.fixtures import running
from weightloom.web import create_app
from weightloom.web.tabs import LIBRARY, find_tabs

#: Also those of installed packages.
TABS = [tab.name for tab in find_tabs()]

PHONE = {"width": 390, "height": 844}


def show(page, tab):
    page.goto(f"/#{tab}")
    page.wait_for_selector(f"#panel-{tab}[data-ready=true]")


def test_every_tab_mounts_and_fits_a_phone(page):
    page.set_viewport_size(PHONE)
    for tab in TABS:
        show(page, tab)
        assert page.locator("[role=tabpanel]:visible").count() == 1
        assert page.locator(f"#tab-{tab}").get_attribute("aria-selected") == "true"
        width = page.evaluate("document.documentElement.scrollWidth")
        assert width <= PHONE["width"], f"{tab} is {width} pixels wide"


def test_tabs_by_keyboard(page):
    show(page, "draw")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.id") == "tab-draw"
    page.keyboard.press("ArrowRight")
    assert page.evaluate("[document.activeElement.id, location.hash]") == [
        "tab-kernels",
        "#kernels",
    ]
    page.keyboard.press("End")
    assert page.evaluate("document.activeElement.id") == f"tab-{TABS[-1]}"
    page.keyboard.press("ArrowRight")  # round to the first
    assert page.evaluate("document.activeElement.id") == "tab-draw"
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("Home")
    assert page.evaluate("document.activeElement.id") == "tab-draw"
    # The other tabs are not stops of their own: the next stop is in the panel.
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.closest('[role=tabpanel]')?.id") == "panel-draw"


def test_a_key_has_done_its_work_when_the_next_one_comes(page):
    show(page, "draw")
    page.locator("#tab-draw").focus()
    selected = page.evaluate(
        """() => {
            const press = new KeyboardEvent("keydown", {key: "ArrowRight", bubbles: true});
            document.activeElement.dispatchEvent(press);
            return [document.querySelector("[aria-selected=true]").id,
                    document.querySelector("[role=tabpanel]:not([hidden])").id];
        }"""
    )
    assert selected == ["tab-kernels", "panel-kernels"]


def test_the_skip_link_leads_to_the_content(page):
    show(page, "kernels")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    assert page.evaluate("[document.activeElement.id, location.hash]") == ["main", "#kernels"]


def test_links_and_back_work(page):
    show(page, "kernels")
    page.locator("#tab-draw").click()
    page.wait_for_selector(
        "#panel-draw:visible"
    )  # the address changes first, the panel a moment later
    page.go_back()
    page.wait_for_selector("#panel-kernels:visible")
    page.goto("/#nonsense")
    page.wait_for_selector("#panel-draw:visible")


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_text_can_be_read_in_both_themes(page, theme):
    """The page's colours have the contrast that WCAG asks of text, 4.5 to 1."""
    page.emulate_media(color_scheme=theme)
    show(page, "kernels")
    pairs = [
        *[(front, back) for front in ("--text", "--muted") for back in ("--page", "--card")],
        ("--accent", "--card"),
        ("--on-accent", "--accent"),
        ("--error", "--error-soft"),
    ]
    read = "n => getComputedStyle(document.documentElement).getPropertyValue(n).trim()"
    for front, back in pairs:
        light, dark = sorted(luminance(page.evaluate(read, name)) for name in (front, back))
        assert (dark + 0.05) / (light + 0.05) >= 4.5, (theme, front, back)


def luminance(colour):
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    r, g, b = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
    return 0.2126 * r + 0.7152 * g + 0.0722 * b


def test_every_control_has_a_name(page):
    for tab in ("draw", "kernels"):
        show(page, tab)
        nameless = page.evaluate(
            """tab => [...document.querySelectorAll(`#panel-${tab} :is(input, select, button)`)]
               .filter(e => !e.labels?.length && !e.textContent.trim() && !e.ariaLabel)
               .map(e => e.outerHTML)""",
            tab,
        )
        assert nameless == []


@pytest.mark.usefixtures("alone")
def test_without_the_papers_there_is_no_results_tab(chrome, page_settings):
    """Not in the list of tabs, and an old link to it leads to the first tab."""
    app = create_app(page_settings)
    with running(page_settings, app) as address, visit(chrome, address) as page:
        page.goto("/#results")
        page.wait_for_selector("#panel-draw[data-ready=true]")
        names = page.locator("[role=tab]").evaluate_all("tabs => tabs.map((tab) => tab.id)")
        assert names == [f"tab-{name}" for name in LIBRARY]
        assert page.locator("[aria-selected=true]").get_attribute("id") == "tab-draw"
        assert page.get_by_text("Results").count() == 0

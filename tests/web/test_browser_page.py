"""The page as a whole in a real browser: tabs, keys, a phone's width."""

import pytest

from weightloom.web.tabs import TABS


@pytest.mark.parametrize("tab", TABS)
def test_every_tab_mounts(page, tab):
    page.goto(f"/#{tab}")
    page.wait_for_selector(f"#panel-{tab}[data-ready=true]")
    assert page.locator("[role=tabpanel]:visible").count() == 1
    assert page.locator(f"#tab-{tab}").get_attribute("aria-selected") == "true"

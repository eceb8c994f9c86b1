"""A page in which requests may be refused, because the test asks for what the server refuses."""

import contextlib

from tests.web.browser import chromium


@contextlib.contextmanager
def visit(chrome, server, *, width=1280, height=800, refused=False, **options):
    """An open page of this size; afterwards, nothing may have gone wrong but refused requests."""
    context = chrome.new_context(
        base_url=server,
        viewport={"width": width, "height": height},
        accept_downloads=True,
        **options,
    )
    page = context.new_page()
    problems = chromium.watch(page, server)
    try:
        yield page
    finally:
        context.close()
    loud = "Failed to load resource: the server responded with a status of 4"
    assert [text for text in problems if not (refused and text.startswith(loud))] == []


def fits(page):
    """Whether nothing sticks out to the right."""
    return page.evaluate("document.documentElement.scrollWidth <= innerWidth")

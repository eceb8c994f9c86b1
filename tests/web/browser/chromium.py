"""Finding a Chromium for the browser tests, and saying how to get one."""

import os
import shutil

import pytest

LONG = 120_000  # milliseconds; machines are shared
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
ADVICE = (
    "no Chromium here; get one with `make browser` (as root: apt-get install chromium) or set "
    "WEIGHTLOOM_CHROMIUM to the path of one"
)


def executable():
    """The path of a Chromium, or None."""
    named = os.environ.get("WEIGHTLOOM_CHROMIUM")
    return named or next(filter(None, map(shutil.which, NAMES)), None)


def launch(playwright):
    """A headless browser; the test is skipped with advice where there is none."""
    path = executable()
    if path is None:
        pytest.skip(ADVICE)
    root = hasattr(os, "geteuid") and os.geteuid() == 0  # Chromium has no sandbox for root
    # Background requests of the browser itself (updates, lists) are not the page's.
    quiet = ["--disable-background-networking", "--disable-component-update", "--no-first-run"]
    return playwright.chromium.launch(
        executable_path=path, args=[*quiet, *(["--no-sandbox"] if root else [])]
    )


def watch(page, base):
    """A list that fills with everything a page should not do: errors, violations, other hosts.

    The page gets the time that a busy machine needs.
    """
    problems = []
    page.set_default_timeout(LONG)
    page.on("console", lambda message: message.type == "error" and problems.append(message.text))
    page.on("pageerror", lambda error: problems.append(f"uncaught: {error}"))

    def asked(request):
        if not request.url.startswith((base, "data:", "blob:")):
            problems.append(f"request to {request.url}")

    page.on("request", asked)
    page.add_init_script(
        "document.addEventListener('securitypolicyviolation', e => "
        "console.error('CSP', e.violatedDirective, e.blockedURI, e.sourceFile))"
    )
    return problems

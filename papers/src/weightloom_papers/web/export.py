"""The Results tab as one HTML file that needs no server and loads nothing."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from weightloom.errors import OutputError, WeightloomError
from weightloom.files import atomic_write
from weightloom.web.context import STATIC
from weightloom_papers.errors import StoreError
from weightloom_papers.lab import Store
from weightloom_papers.lab.provenance import now
from weightloom_papers.web.data import details, figures_of, rows_of, scales_of

__all__ = ["export_html", "html_of"]

OWN = Path(__file__).parent / "static"
SCRIPTS = ("vendor/d3.min.js", "vendor/plot.umd.min.js")
MODULES = (STATIC / "tools.js", OWN / "results_view.js")
STYLES = (STATIC / "style.css", OWN / "results.css")
#: Most points of all curves together; with more, the file would be too large to open.
MOST_POINTS = 400_000

Report = Callable[[tuple[float, str]], None]


def export_html(
    store: Path, path: Path, *, figures: bool = True, chosen: Collection[str] | None = None
) -> int:
    """Write the Results tab of ``store`` to ``path``: one file, whose filters work offline.

    It holds a row for every run (or for those whose keys are ``chosen``), curves up to a limit of
    size, and, with ``figures``, figures and tables of the experiments at the scale of which most
    is stored. Returns the number of runs.
    """
    text, count = html_of(store, figures=figures, chosen=chosen)
    try:
        with atomic_write(path) as part:
            part.write_text(text, encoding="utf-8")
    except OSError as error:
        raise OutputError(
            f"{path} cannot be written ({error.strerror or error}); choose another place"
        ) from error
    return count


def html_of(
    store: Path,
    *,
    figures: bool = True,
    chosen: Collection[str] | None = None,
    drawn: Mapping[str, dict[str, Any]] | None = None,
    report: Report | None = None,
) -> tuple[str, int]:
    """The text of the file, and the number of runs in it.

    ``drawn``: answers of `figures_of` that the caller has already, by experiment.
    """
    tell = report or (lambda progress: None)
    tell((0.0, "reading the store"))
    data, count = _data(store, chosen)
    tell((0.05, "sorting runs by scale"))
    data["scales"] = scales_of(store)
    names = [experiment["name"] for experiment in data["experiments"]]
    for place, name in enumerate(names if figures else []):
        tell((0.1 + 0.85 * place / len(names), f"drawing {name}"))
        try:
            data["figures"][name] = (drawn or {}).get(name) or figures_of(store, name, None)
        except WeightloomError as error:  # nothing stored, or an unknown experiment: go on
            data["figures"][name] = {"error": str(error)}
    tell((0.97, "writing"))
    return _page(data), count


def _data(path: Path, chosen: Collection[str] | None) -> tuple[dict[str, Any], int]:
    if not path.exists():
        raise StoreError(
            f"there is no store at {path}; create one with `weightloom reproduce NAME`, or name "
            f"another with --store FILE"
        )
    problems: list[str] = []
    with Store(path, create=False, on_corrupt=problems.append) as store:
        wanted = [each for each in store.results() if chosen is None or each.run.key in chosen]
    results = sorted(wanted, key=lambda result: result.finished, reverse=True)
    runs: dict[str, Any] = {}
    points = 0
    for result in results:
        points += sum(len(steps) for steps, _ in result.outcome.curves.values())
        if points > MOST_POINTS:
            break
        runs[result.run.key] = details(result)
    data = {
        "missing": False,
        "store": path.name,
        "exported": now()[:16].replace("T", " "),
        "problems": problems[:20],
        "left_out": 0,
        **rows_of(results),
        "runs": runs,
        "figures": {},
    }
    return data, len(results)


# -- the page ------------------------------------------------------------------------------------


def _page(data: dict[str, Any]) -> str:
    scripts = [_inline(STATIC / name) for name in SCRIPTS]
    scripts.append(_module())
    style = "\n".join(path.read_text(encoding="utf-8") for path in STYLES)
    # Only these scripts and styles may run, and nothing may be fetched.
    policy = (
        f"default-src 'none'; img-src data:; style-src {_hash(style)}; "
        f"script-src {' '.join(map(_hash, scripts))}; base-uri 'none'; form-action 'none'"
    )
    # Without this, a text with "</script>" would end the element that holds the data.
    held = json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    plain = "".join(f"<script>{text}</script>\n" for text in scripts[:-1])
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>Results · weightloom</title>
<style>{style}</style>
</head>
<body>
<header class="top"><div class="wide"><h1>weightloom</h1><p class="tagline">Results</p></div>
</header>
<main id="main" class="wide"><div class="tab" id="results"></div></main>
<script type="application/json" id="data">{held}</script>
{plain}<script type="module">{scripts[-1]}</script>
</body>
</html>
"""


def _module() -> str:
    """The modules of the page joined into one; their exports become names in it."""
    texts = [_inline(path) for path in MODULES]
    tools = re.findall(r"^export (?:async )?(?:function|const) (\w+)", texts[0], re.MULTILINE)
    body = "\n".join(re.sub(r"^export ", "", text, flags=re.MULTILINE) for text in texts)
    return f"""{body}
const tools = {{{", ".join(tools)}, Plot: window.Plot, d3: window.d3}};
const held = JSON.parse(document.getElementById("data").textContent);
await show(document.getElementById("results"), tools, embedded(held));
document.getElementById("results").dataset.ready = "true";
"""


def _inline(path: Path) -> str:
    text = path.read_text(encoding="utf-8")
    if "</script" in text.lower():
        raise OutputError(f"{path.name} contains </script> and cannot be put into a page")
    return text


def _hash(text: str) -> str:
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return f"'sha256-{digest}'"

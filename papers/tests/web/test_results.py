"""Results: what the store holds, drawn and exported; stores that are missing, odd or damaged."""

from __future__ import annotations

import html.parser
import json
import math
import sqlite3

import pytest

from papers.tests.web import stores
from weightloom.cli import main
from weightloom.errors import ConfigError, OutputError
from weightloom_papers.errors import StoreError
from weightloom_papers.experiments import all_experiments
from weightloom_papers.lab import Outcome, Result, Run, Store
from weightloom_papers.web import data as results_data
from weightloom_papers.web import export as results_export
from weightloom_papers.web.data import figures_of, run_of, runs_of, scales_of
from weightloom_papers.web.export import export_html, html_of


@pytest.fixture(scope="module")
def filled(tmp_path_factory):
    path = tmp_path_factory.mktemp("store") / "results.sqlite"
    return path, stores.fill(path)


def test_every_run_has_a_row(filled):
    path, results = filled
    answer = runs_of(path)
    text = json.dumps(answer, allow_nan=False)
    assert "NaN" not in text
    rows = {row["key"]: row for row in answer["rows"]}
    assert set(rows) == {result.run.key for result in results}
    for result in results:
        row = rows[result.run.key]
        assert row["config"] == dict(result.run.config)
        assert row["status"] == result.outcome.status
        assert {**answer["provenances"][row["made"]], **row["also"]} == dict(result.provenance)
        for name, value in result.outcome.metrics.items():
            assert float(row["metrics"][name]) == value or math.isnan(value)
    assert [row["finished"] for row in answer["rows"]] == sorted(
        (row["finished"] for row in answer["rows"]), reverse=True
    )
    assert len(answer["provenances"]) == 1  # kept once, not once for each run
    known, unknown = answer["experiments"]
    assert (known["name"], unknown["name"]) == (stores.EXPERIMENT, "unheard-of")
    assert known["claim"] == all_experiments()[stores.EXPERIMENT].claim


def test_scales(filled):
    path, results = filled
    answer = scales_of(path)
    experiment = all_experiments()[stores.EXPERIMENT]
    for scale in ("smoke", "laptop", "paper"):
        listed = {run.key for run in experiment.runs(scale)}
        stored = {result.run.key for result in results} & listed
        assert answer["counts"][stores.EXPERIMENT][scale] == [len(stored), len(listed)]
        assert {key for key, scales in answer["of"].items() if scale in scales} == stored
    assert "unheard-of" not in answer["counts"]


def test_one_run_in_full(filled):
    path, results = filled
    odd = next(result for result in results if "train" in result.outcome.curves)
    answer = run_of(path, odd.run.experiment, odd.run.key)
    assert answer["curves"]["train"] == [[0, 1, 2, 3], [1.0, 0.5, "nan", 0.25]]
    failed = next(result for result in results if result.outcome.failed)
    assert run_of(path, failed.run.experiment, failed.run.key)["message"] == stores.HOSTILE
    with pytest.raises(StoreError, match="no run 'feedbeef'"):
        run_of(path, "unheard-of", "feedbeef")


def test_long_curves_are_thinned_and_keep_their_end(tmp_path):
    steps = list(range(10_001))
    run = Run("unheard-of", {}, 0)
    with Store(tmp_path / "s.sqlite") as store:
        store.add(Result(run, Outcome("done", {}, {"train": (steps, [float(s) for s in steps])})))
    steps, values = run_of(tmp_path / "s.sqlite", "unheard-of", run.key)["curves"]["train"]
    assert len(steps) <= results_data.MOST_POINTS + 1
    assert (steps[0], steps[-1]) == (0, 10_000)
    assert values == [float(step) for step in steps]


def test_no_store_says_how_to_create_one(tmp_path):
    path = tmp_path / "none.sqlite"
    answer = runs_of(path)
    assert answer["missing"] is True
    assert answer["command"].startswith("weightloom reproduce ")
    name = answer["command"].split()[2]
    assert name in all_experiments()
    assert not path.exists()  # looking makes none
    with pytest.raises(StoreError, match="there is no store at"):
        html_of(path)


def test_a_damaged_row_is_named_and_the_rest_is_shown(tmp_path):
    path = tmp_path / "results.sqlite"
    results = stores.fill(path)
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE results SET metrics = '{\"mse\": 0}' WHERE rowid = 1")
    connection.close()
    answer = runs_of(path)
    assert len(answer["rows"]) == len(results) - 1
    assert len(answer["problems"]) == 1
    assert "cannot be read and is left out" in answer["problems"][0]


def test_not_a_store(tmp_path):
    path = tmp_path / "results.sqlite"
    path.write_text("hello")
    with pytest.raises(StoreError):
        runs_of(path)
    assert path.read_text() == "hello"


def test_many_runs_are_cut(filled, monkeypatch):
    path, results = filled
    monkeypatch.setattr(results_data, "MOST_ROWS", 3)
    answer = runs_of(path)
    assert len(answer["rows"]) == 3
    assert answer["left_out"] == len(results) - 3
    assert answer["rows"][0]["finished"] == max(result.finished for result in results)


def test_unknown_experiments_cannot_be_drawn(filled):
    with pytest.raises(ConfigError, match="there is no experiment 'unheard-of' here"):
        figures_of(filled[0], "unheard-of", None)
    with pytest.raises(StoreError, match="weightloom reproduce modularity/fig3a --scale smoke"):
        figures_of(filled[0], "modularity/fig3a", "smoke")


# -- the export ----------------------------------------------------------------------------------


class Parts(html.parser.HTMLParser):
    """What a browser would see: elements, and the text of each script."""

    def __init__(self):
        super().__init__()
        self.tags, self.scripts, self.links = [], [], []
        self._in_script = False

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.links += [value for name, value in attributes if name in ("src", "href")]
        if tag == "script":
            self.scripts.append("")
            self._in_script = True

    def handle_endtag(self, tag):
        self._in_script = self._in_script and tag != "script"

    def handle_data(self, data):
        if self._in_script:
            self.scripts[-1] += data


@pytest.fixture(scope="module")
def exported(filled):
    reported = []
    text, count = html_of(filled[0], report=reported.append)
    return text, count, reported


def test_the_export_holds_everything(filled, exported):
    path, results = filled
    text, count, reported = exported
    assert count == len(results)
    parts = Parts()
    parts.feed(text)
    assert parts.links == []  # nothing is fetched
    assert "img" not in parts.tags  # what a config says is no element
    data = json.loads(parts.scripts[0])
    assert {row["key"] for row in data["rows"]} == {result.run.key for result in results}
    assert data["scales"] == scales_of(path)
    (drawn,) = data["figures"][stores.EXPERIMENT]["figures"]
    assert drawn["uri"].startswith("data:image/png;base64,iVBOR")
    assert "no experiment 'unheard-of'" in data["figures"]["unheard-of"]["error"]
    assert stores.HOSTILE in {row["config"].get("model") for row in data["rows"]}
    fractions = [fraction for fraction, _ in reported]
    assert fractions == sorted(fractions)
    assert fractions[-1] < 1


def test_the_table_stands_beside_the_paper(exported):
    parts = Parts()
    parts.feed(exported[0])
    figure = json.loads(parts.scripts[0])["figures"][stores.EXPERIMENT]
    assert figure["paper"].startswith("depth-separation, ")
    assert figure["claim"]
    assert figure["scale"] == "smoke"
    assert figure["note"] == "Scale smoke, all 5 runs."
    assert all(len(row) == len(figure["table"]["columns"]) for row in figure["table"]["rows"])


def test_writing_the_export(filled, tmp_path):
    path = tmp_path / "page.html"
    assert export_html(filled[0], path, figures=False) == len(filled[1])
    assert path.read_text(encoding="utf-8").startswith("<!doctype html>")
    with pytest.raises(OutputError, match="cannot be written"):
        export_html(filled[0], tmp_path / "no" / "page.html", figures=False)
    (tmp_path / "folder").mkdir()
    with pytest.raises(OutputError, match="cannot be written"):
        export_html(filled[0], tmp_path / "folder", figures=False)
    assert sorted(tmp_path.iterdir()) == [tmp_path / "folder", path]  # nothing half-written


def test_what_was_drawn_is_not_drawn_again(filled, monkeypatch):
    monkeypatch.setattr(results_export, "figures_of", lambda *asked: {"asked": asked[1:]})
    text, _ = html_of(filled[0], drawn={stores.EXPERIMENT: {"mine": True}})
    parts = Parts()
    parts.feed(text)
    assert json.loads(parts.scripts[0])["figures"] == {
        stores.EXPERIMENT: {"mine": True},
        "unheard-of": {"asked": ["unheard-of", None]},
    }


def test_the_command_exports_what_was_chosen(filled, tmp_path, capsys):
    path = tmp_path / "page.html"
    chosen = ["--experiment", "unheard-of", "--status", "done"]
    assert main(["results", "--store", str(filled[0]), *chosen, "--export", str(path)]) == 0
    assert f"1 results and their figures written to {path}" in capsys.readouterr().out
    parts = Parts()
    parts.feed(path.read_text(encoding="utf-8"))
    (row,) = json.loads(parts.scripts[0])["rows"]
    assert row["config"] == {"model": stores.HOSTILE, "depth": 2}


def test_many_curves_are_left_out(filled, monkeypatch):
    monkeypatch.setattr(results_export, "MOST_POINTS", 0)
    text, _ = html_of(filled[0], figures=False)
    parts = Parts()
    parts.feed(text)
    data = json.loads(parts.scripts[0])
    with_curves = {result.run.key for result in filled[1] if result.outcome.curves}
    assert not with_curves & set(data["runs"])
    assert len(data["rows"]) == len(filled[1])


# -- through the server --------------------------------------------------------------------------


def test_through_the_server(client, page_settings):
    if not page_settings.store.exists():
        assert client.get("/api/results/runs").json()["missing"] is True
        stores.fill(page_settings.store)
    answer = client.get("/api/results/runs").json()
    row = next(row for row in answer["rows"] if row["experiment"] == "unheard-of")
    run = client.get(f"/api/results/run/unheard-of/{row['key']}").json()
    assert run["curves"]["train"][0] == [0, 1, 2, 3]
    gone = client.get("/api/results/run/unheard-of/..%2F..%2Fpasswd")
    assert gone.status_code in (404, 422)
    wrong = client.get(f"/api/results/figures/{stores.EXPERIMENT}", params={"scale": "huge"})
    assert wrong.status_code == 422
    assert "scale: Input should be 'smoke', 'laptop' or 'paper'" in wrong.json()["error"]
    unknown = client.get("/api/results/figures/unheard-of")
    assert unknown.status_code == 422


def test_nothing_exported_yet(page_settings):
    from starlette.testclient import TestClient

    from weightloom.web import create_app

    # Not entered: no worker is started, and none is needed to say no.
    fresh = TestClient(create_app(page_settings), base_url="http://localhost")
    answer = fresh.get("/api/results/export/file")
    assert answer.status_code == 422
    assert "there is no exported page yet" in answer.json()["error"]
    assert fresh.get("/api/results/export").json()["ready"] is False

"""*Which model?* with the papers installed: constants measured on networks in a store."""

from __future__ import annotations

import pytest

from papers.tests.cli.test_size import fill
from weightloom.errors import ConfigError
from weightloom.web.tabs.sizes import answer_for


def test_measured_constants_are_offered():
    assert answer_for((1, 1, 1, 0.1, None), None)["can_calibrate"] is True


def test_measured_constants(tmp_path):
    path = tmp_path / "results.sqlite"
    fill(path)
    answer = answer_for((1, 1, 1, 0.1, None), path)
    assert "measured on 4 networks" in answer["calibration"]
    assert answer["silent"] == ["embedding method: q, any k"]
    assert {row["kind"] for row in answer["rows"]} == {"built"}
    assert all(row["constant"] != 1 for row in answer["rows"])


def test_measured_constants_need_a_store(tmp_path):
    with pytest.raises(
        ConfigError, match=r"no store of results .* run `weightloom reproduce modularity/rates"
    ):
        answer_for((1, 1, 1, 0.1, None), tmp_path / "none.sqlite")
    assert not (tmp_path / "none.sqlite").exists()

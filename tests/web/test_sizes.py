"""Which model?: the library's numbers, and clear answers to wrong ones."""

from __future__ import annotations

import pytest

from weightloom.bounds import advice, parameter_rates


def rates(client, **asked):
    wanted = {"m1": 1, "m2": 2, "eps": 0.01, **asked}
    return client.get("/api/sizes/rates", params=wanted)


def test_numbers_are_the_library_s(client):
    answer = rates(client, selector=2).json()
    wanted = parameter_rates(1, 2, 1, 0.01, 2)
    assert {row["method"]: row["log10"] for row in answer["rows"]} == {
        rate.method: rate.log10 for rate in wanted.rates()
    }
    assert [row["parameters"] for row in answer["rows"]][:2] == ["1,000,000", "1,000,000"]
    assert answer["advice"] == advice(wanted)
    assert answer["assumptions"] == list(wanted.assumptions)
    # The chart's lines, at another error than the one asked for.
    eps, primary = answer["errors"][-1], answer["lines"]["primary"][-1]
    assert primary == parameter_rates(1, 2, 1, eps).primary.log10
    assert min(answer["errors"]) < 0.01 < max(answer["errors"]) < 1


def test_no_number_where_the_theorems_are_silent(client):
    answer = rates(client, smoothness=3).json()
    assert [row["method"] for row in answer["rows"]] == ["plain", "primary"]
    assert "say nothing for r = 3" in " ".join(answer["assumptions"])


def test_counts_that_no_float_holds(client):
    answer = rates(client, m1=500, m2=500, eps=1e-12).json()
    assert answer["rows"][0]["log10"] == 12_000
    assert answer["rows"][0]["parameters"] == "10^12000.0"


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"m1": 0}, "m1: Input should be greater than or equal to 1"),
        ({"m2": 10**9}, "m2: Input should be less than or equal to 1000"),
        ({"eps": 2}, "eps: Input should be less than 1"),
        ({"eps": "nan"}, "eps: Input should be"),
        ({"smoothness": "smooth"}, "smoothness: Input should be a valid integer"),
        ({"selector": 0}, "selector: Input should be greater"),
    ],
)
def test_wrong_numbers(client, asked, message):
    answer = rates(client, **asked)
    assert answer.status_code == 422
    assert message in answer.json()["error"]

"""Runs and outcomes: what makes two runs the same, and what cannot be stored."""

from __future__ import annotations

import hashlib
import math
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from weightloom.errors import ConfigError
from weightloom_papers.lab import Outcome, ResultTable, Run

finite = st.floats(allow_nan=False, allow_infinity=False)
scalars = st.none() | st.booleans() | st.integers() | st.text() | finite
configs = st.dictionaries(st.text(), scalars | st.lists(scalars, max_size=3), max_size=4)


@given(configs, st.integers(-(2**63), 2**63 - 1))
def test_key_forgets_order_and_survives_pickle(config, seed):
    run = Run("a", config, seed)
    turned = Run("a", dict(reversed(config.items())), seed)
    assert run == turned
    assert hash(run) == hash(turned)
    assert pickle.loads(pickle.dumps(run)).key == run.key
    assert len(run.key) == 32


@given(configs, configs)
def test_different_configurations_have_different_keys(config, other):
    # Python's own equality decides, except that it takes True for 1.
    same = config == other and repr_types(config) == repr_types(other)
    assert (Run("a", config, 0) == Run("a", other, 0)) == same


def repr_types(config):
    return {
        name: [isinstance(each, bool) for each in (value if isinstance(value, list) else [value])]
        for name, value in config.items()
    }


def test_the_key_is_what_it_says():
    text = '["a",{"b":[1,2.5],"c":null},3]'
    expected = hashlib.sha256(text.encode()).hexdigest()[:32]
    assert Run("a", {"c": None, "b": (1.0, 2.5)}, 3).key == expected


def test_every_part_counts():
    run = Run("a", {"depth": 2}, 0)
    others = [
        Run("b", {"depth": 2}, 0),
        Run("a", {"depth": 3}, 0),
        Run("a", {"depth": 2}, 1),
        Run("a", {"depth": "2"}, 0),
        Run("a", {"depth": 2, "more": None}, 0),
        Run("a", {"depth": True}, 0),
        Run("a", {"depth": 1}, 0),
    ]
    assert len({run, *others}) == 8


def test_a_configuration_cannot_be_changed_behind_the_key():
    config = {"depth": 2}
    run = Run("a", config, 0)
    config["depth"] = 3
    assert run.config == {"depth": 2}


@pytest.mark.parametrize(
    ("config", "seed", "message"),
    [
        ({"x": math.nan}, 0, r"config\['x'\] is nan"),
        ({"x": [1, math.inf]}, 0, r"config\['x'\]\[1\] is inf"),
        ({"x": np.int64(1)}, 0, r"config\['x'\] is a int64"),
        ({"x": torch.ones(1)}, 0, r"config\['x'\] is a Tensor"),
        ({"x": {"y": 1}}, 0, r"config\['x'\] is a dict"),
        ({"x": [[1]]}, 0, r"config\['x'\]\[0\] is a list"),
        ({1: 2}, 0, "the name 1 is not a string"),
        ({}, True, "seed is True, wanted an int"),
        ({}, 1.0, "seed is 1.0, wanted an int"),
        ({}, 2**63, "wanted at most 64 bits"),
    ],
)
def test_what_cannot_be_stored(config, seed, message):
    with pytest.raises(ConfigError, match=message):
        Run("a", config, seed)


def test_all_problems_at_once():
    with pytest.raises(ConfigError, match=r"seed is 'a'.*config\['x'\] is nan.*'y'.* is a set"):
        Run("a", {"x": math.nan, "y": set()}, "a")


def test_outcome_takes_numbers_of_any_kind():
    outcome = Outcome(
        "done", {"a": np.float32(0.5), "b": torch.tensor(2)}, {"c": (np.arange(2), torch.ones(2))}
    )
    assert outcome.metrics == {"a": 0.5, "b": 2.0}
    assert outcome.curves == {"c": ([0, 1], [1.0, 1.0])}
    assert all(type(value) is float for value in outcome.metrics.values())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"status": "fine"},
            "status 'fine'; wanted one of done, plateau, diverged, failed or inter",
        ),
        ({"curves": {"c": ([1, 2], [0.5])}}, "curve 'c' has 2 steps but 1 values"),
        ({"seconds": math.nan}, "took nan seconds"),
        ({"seconds": -1}, "took -1.0 seconds"),
    ],
)
def test_outcomes_that_are_none(arguments, message):
    with pytest.raises(ConfigError, match=message):
        Outcome(**{"status": "done", "metrics": {}, **arguments})


def test_table_as_text_and_csv():
    table = ResultTable(
        ["model", "MSE", "ok"],
        [["hyper", 0.123456789, True], ["plain, old", math.nan, None]],
        title="A title",
        notes=["a note"],
    )
    assert table.text().splitlines() == [
        "A title", "",
        "model          MSE  ok",
        "----------  ------  ---",
        "hyper       0.1235  yes",
        "plain, old     nan",
        "", "a note",
    ]  # fmt: skip
    assert table.csv() == 'model,MSE,ok\nhyper,0.123456789,True\n"plain, old",nan,\n'


def test_a_table_without_rows():
    assert ResultTable(["a", "bc"], []).text() == "a  bc\n-  --"


def test_a_ragged_table():
    with pytest.raises(
        ConfigError, match="row 1 of table 'T' has 1 cells, but there are 2 columns"
    ):
        ResultTable(["a", "b"], [[1, 2], [1]], title="T")

"""A part of each study of estimators, run again, gives the committed numbers."""

import json

import pytest

from coulda.studies.coverage import Power
from coulda.studies.sepsis import PUBLISHED, PUBLISHED_ONCE, SepsisReproduction
from coulda.studies.sepsis_control import SepsisControl
from tests.conftest import ROOT


def result(name: str) -> dict:
    return json.loads((ROOT / "results" / "evaluation" / name).read_text())


def test_sepsis_is_held_against_what_the_code_knows_to_be_published():
    found = result("sepsis.json")
    assert found["published"] == {name: list(numbers) for name, numbers in PUBLISHED.items()}
    assert found["one data set, published"] == PUBLISHED_ONCE


@pytest.mark.slow
def test_the_first_data_set_of_sepsis(tmp_path):
    found = SepsisReproduction(data_sets=1, tables=1, out=tmp_path / "sepsis.json").run()
    assert found["rows"][0] == pytest.approx(result("sepsis.json")["rows"][0])
    assert found["verdicts"] == result("sepsis.json")["verdicts"]


@pytest.mark.slow
def test_with_everything_observed_counterfactuals_are_right_and_trusted():
    committed = result("sepsis_control.json")["estimates"]
    for name, methods in SepsisControl().table(1).estimates.items():
        truth = methods["on-policy"]
        for method, estimate in methods.items():
            assert estimate.verdict == committed[name][method]["verdict"] == "trust"
            assert estimate.value == pytest.approx(committed[name][method]["value"])
            slack = 0.25 * estimate.interval.width
            assert estimate.interval.low - slack < truth.value < estimate.interval.high + slack


@pytest.mark.slow
def test_a_mild_mismatch_is_warned_of_and_none_is_not(tmp_path):
    """Of 200 logs: 5 % is 3.5 standard errors above 1.6 %."""
    warned = Power(sizes=(0.0, 1.0), out=tmp_path / "power.json").run()["caution or worse"]
    committed = result("power.json")["caution or worse"]
    assert warned == pytest.approx({size: committed[size] for size in warned})
    assert warned["0.0"] <= 0.05 < 0.95 <= warned["1.0"]

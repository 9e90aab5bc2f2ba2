"""The simulation of actors and learner against closed forms, where nothing varies."""

import pytest

from benchmarks.scaling import Costs, saturated_by, simulate

STEADY = Costs(actor=2.0, learner=0.5, message=0.25, steps=10, variation=0.0)


def test_actors_and_learner_that_wait_for_each_other_take_turns():
    told = simulate(STEADY, actors=4, episodes=3, staleness=0)
    period = 2.0 * 3 + 4 * (0.25 + 3 * 0.5)
    assert told["steps a second"] == pytest.approx(4 * 3 * 10 / period)
    assert told["learner busy"] == pytest.approx(1 - told["actors busy"])


@pytest.mark.parametrize(("actors", "cores"), [(1, 1), (4, 1), (4, 8), (50, 8)])
def test_with_staleness_the_slower_of_the_two_decides(actors, cores):
    told = simulate(STEADY, actors, episodes=3, learner_cores=cores, staleness=2, updates=4000)
    slower = max(6.0, actors * (0.25 + 3 * 0.5 / cores))
    assert told["steps a second"] == pytest.approx(actors * 3 * 10 / slower, rel=1e-2)
    assert (told["learner busy"] > 0.99) == (actors >= saturated_by(STEADY, 3, cores))


def test_variation_keeps_the_mean_and_costs_the_slowest():
    varied = Costs(2.0, 0.0, 0.0, 10, variation=0.3)
    told = simulate(varied, actors=200, episodes=1, staleness=0)
    assert told["actors busy"] < 0.6  # an update waits for the slowest of 200
    assert told["steps a second"] * 2.0 / (200 * 10) == pytest.approx(told["actors busy"], rel=0.02)

"""Actions that are numbers: fitted values and doubly robust estimates against a closed form, and fitted behaviors."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

from coulda.episodes import Schema, checked_log, fit_behavior
from coulda.errors import CouldaError
from coulda.evaluation import DoublyRobust, FittedQ, ImportanceSampling, LinearQ, NetworkQ, QuadraticQ, Returns, compare
from coulda.evaluation.nodes import node_weights, nodes
from coulda.evaluation.propensities import propensity_diagnostic
from coulda.evaluation.reading import read
from coulda.noise import Categorical, Normal
from coulda.pomdp import Policy

KEY = jax.random.key(5)
HORIZON, EPISODES = 4, 600
MOVE, NOISE = 0.8, 0.3


class Steer(Policy):
    """a ~ N(gain · s + offset, scale²)."""

    gain: float = eqx.field(converter=jnp.asarray)
    offset: float = eqx.field(converter=jnp.asarray, default=0.0)
    scale: float = eqx.field(converter=jnp.asarray, default=0.5)

    def __call__(self, carry, observation):
        return carry, Normal(self.gain * observation + self.offset, jnp.broadcast_to(self.scale, observation.shape))


class Always(Policy):
    """Takes the second action, whatever it sees."""

    def __call__(self, carry, observation):
        return carry, Categorical(logits=jnp.array([-jnp.inf, 0.0]))


BEHAVIOR, TARGET = Steer(-0.3, 0.0, 0.6), Steer(-0.5, 0.1, 0.5)


def drift_log(policy=BEHAVIOR, episodes=EPISODES, seed=0, heteroscedastic=False):
    """s' = 0.8 s + a + 0.3 u, r = -s² - a²/2, in NumPy and not by any code under test."""
    rng = np.random.default_rng(seed)
    gain, offset, scale = (float(x) for x in (policy.gain, policy.offset, policy.scale))
    s = rng.normal(1.0, 0.5, episodes)
    seen, done, paid, logs = [s], [], [], []
    for _ in range(HORIZON):
        spread = scale * np.exp(0.4 * s) if heteroscedastic else np.full(episodes, scale)
        a = rng.normal(gain * s + offset, spread)
        done.append(a)
        paid.append(-(s**2) - 0.5 * a**2)
        logs.append(-0.5 * ((a - gain * s - offset) / spread) ** 2 - np.log(spread) - 0.5 * np.log(2 * np.pi))
        s = MOVE * s + a + NOISE * rng.normal(size=episodes)
        seen.append(s)
    flat = lambda columns: np.stack(columns, 1).ravel()
    box = spaces.Box(-np.inf, np.inf, (1,))
    columns = flat(seen)[:, None], flat(done)[:, None], flat(paid)
    lengths = np.full(episodes, HORIZON)
    return checked_log(Schema(box, box), *columns, lengths, np.ones(episodes, bool), flat(logs))


def value(policy, discount=1.0):
    """E[G]: mean and variance of the state go from step to step in closed form."""
    k, c, scale = (float(x) for x in (policy.gain, policy.offset, policy.scale))
    mean, variance, total = 1.0, 0.25, 0.0
    for t in range(HORIZON):
        a, spread = k * mean + c, k**2 * variance + scale**2
        total -= discount**t * (mean**2 + variance + 0.5 * (a**2 + spread))
        mean, variance = (MOVE + k) * mean + c, (MOVE + k) ** 2 * variance + scale**2 + NOISE**2
    return total


@pytest.fixture(scope="module")
def log():
    return drift_log()


def test_every_estimate_finds_the_closed_form(log):
    """Within 4.5 standard errors; twin: the value of the behavior is far outside of fitted values' intervals."""
    asked = Returns(discount=0.8)
    methods = [ImportanceSampling("weighted_per_decision"), DoublyRobust(), DoublyRobust(weighted=True), FittedQ()]
    found = compare(KEY, log, {"target": TARGET}, methods, returns=asked).estimates["target"]
    truth, other = value(TARGET, asked.discount), value(BEHAVIOR, asked.discount)
    for row in found.values():
        assert abs(row.value - truth) < 4.5 * row.interval.width / 3.92, str(row)
    assert found["FQE"].verdict == "trust", found["FQE"].reasons
    assert found["FQE"].details["regression"] == "QuadraticQ"
    for name in ("FQE", "WDR"):
        assert not found[name].interval.low <= other <= found[name].interval.high
    assert found["WDR"].interval.width < found["WPDIS"].interval.width


def test_values_of_actions_that_were_never_taken_are_not_trusted(log):
    assert FittedQ(QuadraticQ()).estimate(KEY, Steer(-0.3, 4.0, 0.5), log).verdict == "do not trust"
    with pytest.raises(CouldaError, match="NetworkQ cannot be averaged"):
        FittedQ(NetworkQ()).estimate(KEY, TARGET, log)


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_points_have_the_moments_of_a_normal_distribution(size):
    points, weights = nodes(size), node_weights(size)
    np.testing.assert_allclose(weights @ points, 0, atol=1e-12)
    np.testing.assert_allclose((points.T * weights) @ points, np.eye(size), atol=1e-9)


def unknown(log):
    return log.with_log_prob(np.full_like(log.log_prob, np.nan), "logged")


def test_fitted_densities_are_those_of_the_behavior():
    """Mean and scale from 2,400 steps; twin: a constant scale would miss by far."""
    log = drift_log(heteroscedastic=True, seed=1)
    fitted = fit_behavior(unknown(log), penalty=0.1)
    assert fitted.schema.behavior == "fitted"
    errors = np.abs(fitted.log_prob - log.log_prob)
    assert errors.mean() < 0.05
    seen = np.delete(log.observation[:, 0], slice(HORIZON, None, HORIZON + 1))
    constant = log.action[:, 0] - np.polyval(np.polyfit(seen, log.action[:, 0], 1), seen)
    spread = constant.std()
    plain = -0.5 * (constant / spread) ** 2 - np.log(spread) - 0.5 * np.log(2 * np.pi)
    assert np.abs(plain - log.log_prob).mean() > 2 * errors.mean()


def propensities(log):
    fitted = fit_behavior(unknown(log))
    return propensity_diagnostic(read(fitted, {"target": TARGET}))[0]


def test_fitted_densities_are_checked(log):
    """A linear Gaussian behavior passes; one of two minds, which acts by the sign of what it saw, does not."""
    assert propensities(log).verdict == "trust"
    assert not propensity_diagnostic(read(log, {"target": TARGET}))
    rng = np.random.default_rng(2)
    split = np.where(rng.random(log.action.shape) < 0.5, -2.0, 2.0) + 0.1 * rng.normal(size=log.action.shape)
    two = checked_log(log.schema, log.observation, split, log.reward, log.lengths, log.terminated, log.log_prob)
    found = propensities(two)
    assert found.verdict == "do not trust"
    assert "not calibrated" in found.sentence
    fitted = ImportanceSampling().estimate(KEY, TARGET, fit_behavior(unknown(log)))
    assert "propensities" in [d.name for d in fitted.diagnostics]


def test_fitted_choices_are_checked():
    """Logistic choices pass; those in a band of the observation, which no such function has, do not."""
    rng = np.random.default_rng(3)
    x = rng.normal(size=(2000, 1)).astype(np.float32)
    schema = Schema(spaces.Box(-np.inf, np.inf, (1,)), spaces.Discrete(2))

    def found(chance):
        actions = (rng.random(2000) < chance[:, 0]).astype(int)
        flags = np.ones(2000, bool)
        log = checked_log(schema, np.repeat(x, 2, 0), actions, np.zeros(2000), np.ones(2000, int), flags)
        return propensity_diagnostic(read(fit_behavior(log), {}))[0]

    assert found(1 / (1 + np.exp(-x))).verdict == "trust"
    assert found(np.where(x > 0.3, 0.9, np.where(x > -0.5, 0.1, 0.6))).verdict != "trust"


def test_what_is_missing_is_seen_to_be_missing():
    """Half of the observations are hidden where the behavior waits: then it is known to wait. The value is found, and
    would not be if a gap stood for the mean alone."""
    rng = np.random.default_rng(4)
    x = rng.normal(size=4000).astype(np.float32)
    hidden = rng.random(4000) < 0.5
    actions = np.where(hidden, rng.random(4000) < 0.1, rng.random(4000) < 0.7).astype(int)
    reward = actions * np.where(hidden, 2.0, 1.0)
    seen = np.where(hidden, np.nan, x)[:, None]
    schema = Schema(spaces.Box(-np.inf, np.inf, (1,)), spaces.Discrete(2))
    columns = np.repeat(seen, 2, 0), actions, reward, np.ones(4000, int), np.ones(4000, bool)
    fitted = fit_behavior(checked_log(schema, *columns))
    chance = np.where(hidden, 0.1, 0.7)
    np.testing.assert_allclose(np.exp(fitted.log_prob), np.where(actions == 1, chance, 1 - chance), atol=0.05)
    assert FittedQ(LinearQ()).estimate(KEY, Always(), fitted).value == pytest.approx(
        2 * hidden.mean() + 1 - hidden.mean(), abs=0.02
    )


def test_a_behavior_that_repeats_itself_is_not_a_function_of_what_it_saw():
    """Calibrated all the same: nothing that is seen tells what is done."""
    rng, steps = np.random.default_rng(4), 4
    schema = Schema(spaces.Discrete(3), spaces.Discrete(2))

    def found(again):
        actions = rng.random((500, steps)) < 0.5
        for t in range(1, steps):
            actions[:, t] = np.where(rng.random(500) < again, actions[:, t - 1], actions[:, t])
        seen, lengths = rng.integers(3, size=500 * (steps + 1)), np.full(500, steps)
        flags, reward = np.ones(500, bool), np.zeros(500 * steps)
        log = checked_log(schema, seen, actions.astype(int).ravel(), reward, lengths, flags)
        return propensity_diagnostic(read(fit_behavior(log), {}))[0].verdict

    assert found(0.0) == "trust"
    assert found(0.5) == "caution"

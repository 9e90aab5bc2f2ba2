"""Every model-free estimator against a plain-Python one written from its definition, on episodes of many lengths."""

import math
import zlib
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

from coulda.episodes import Schema, checked_log, collect, fit_behavior
from coulda.evaluation import DoublyRobust, FittedQ, ImportanceSampling, LinearQ, NetworkQ, Returns
from coulda.evaluation.estimate import key_for
from coulda.evaluation.fitted_q import cross_fitted, default_regression, fit_values, seen_by, steps_of
from coulda.evaluation.reading import read
from coulda.evaluation.regressions import inverse
from coulda.noise import Categorical, Normal
from coulda.pomdp import Policy
from tests.triage import BEHAVIOR, TARGET, Stubborn, Table, exact_value, triage

KEY = jax.random.key(7)
DISCOUNTED = Returns(discount=0.7)


@pytest.fixture(scope="module")
def log():
    return collect(jax.random.key(0), triage(), BEHAVIOR, 300)


def fitted_to(log, regression):
    """What the regression sees of the log, with TARGET's probabilities."""
    return regression, steps_of(read(log, {"target": TARGET}, [seen_by(regression)]), "target", regression)


def plain_steps(log, probability):
    """Each episode as a list of (π/μ, reward), with π(a | history) from `probability(history, action)`."""
    episodes = []
    for episode in log:
        steps, actions = [], []
        for t, action in enumerate(episode.action.tolist()):
            pi = probability(int(episode.observation[t]), actions, action)
            steps.append((pi / math.exp(episode.log_prob[t]), float(episode.reward[t])))
            actions.append(action)
        episodes.append(steps)
    return episodes


def target_probability(observation, actions, action):
    return float(TARGET.probabilities[observation, action])


def stubborn_probability(observation, actions, action):
    if not actions:
        return 0.5
    return 0.8 if actions[-1] == action else 1 - 0.8


def plain_importance(episodes, kind, cap=None, discount=1.0):
    episodes = [[(ratio, discount**t * reward) for t, (ratio, reward) in enumerate(steps)] for steps in episodes]
    weights = [math.prod(ratio for ratio, _ in steps) for steps in episodes]
    returns = [sum(reward for _, reward in steps) for steps in episodes]
    n = len(episodes)
    if kind == "ordinary":
        return sum(w * g for w, g in zip(weights, returns, strict=True)) / n
    if kind == "capped":
        return sum(min(w, cap) * g for w, g in zip(weights, returns, strict=True)) / n
    if kind == "weighted":
        return sum(w * g for w, g in zip(weights, returns, strict=True)) / sum(weights)
    horizon, total = max(len(steps) for steps in episodes), 0.0
    for t in range(horizon):
        so_far = [math.prod(ratio for ratio, _ in steps[: t + 1]) for steps in episodes]
        paid = [w * steps[t][1] if t < len(steps) else 0.0 for w, steps in zip(so_far, episodes, strict=True)]
        total += sum(paid) / (n if kind == "per_decision" else sum(so_far))
    return total


@pytest.mark.parametrize("kind", ["ordinary", "weighted", "per_decision", "weighted_per_decision", "capped"])
@pytest.mark.parametrize("recurrent", [False, True])
def test_importance_sampling(log, kind, recurrent):
    policy, probability = (Stubborn(), stubborn_probability) if recurrent else (TARGET, target_probability)
    plain = partial(plain_importance, plain_steps(log, probability), kind, 1.5)
    method, expected = ImportanceSampling(kind, cap=1.5 if kind == "capped" else None), plain()
    estimate = method.estimate(KEY, policy, log)
    assert estimate.value == pytest.approx(expected, abs=1e-5)
    discounted = method.estimate(KEY, policy, log, returns=DISCOUNTED)
    assert discounted.value == pytest.approx(plain(discount=DISCOUNTED.discount), abs=1e-5)
    assert abs(discounted.value - expected) > 0.01
    assert estimate.terms.mean() == pytest.approx(expected, abs=1e-5)
    assert estimate.value in estimate.interval
    assert estimate.status == "ok"


class Counting(Table):
    """Says what its table says, and counts its steps, so that it has to be walked along each episode."""

    def initial_carry(self):
        return jnp.int32(0)

    def remember(self, carry, action, reward):
        return carry + 1


def test_what_is_looked_up_is_what_a_walk_finds(log):
    """Of observations that are counted from 10 and actions from 1 too: the first rows and column of the table are not
    those of the first numbers."""
    shifted = Schema(spaces.Discrete(4, start=10), spaces.Discrete(2, start=1))
    columns = log.reward, log.lengths, log.terminated, log.log_prob
    moved = checked_log(shifted, log.observation + 10, log.action + 1, *columns)
    table = np.random.default_rng(0).dirichlet(np.ones(3), 14)
    for one, rows in ((log, table[:, :2] / table[:, :2].sum(1, keepdims=True)), (moved, table)):
        seen = [seen_by(default_regression(one))]
        found = read(one, {"looked up": Table(rows), "walked": Counting(rows)}, seen)
        for answers in (found.taken, found.probabilities):
            np.testing.assert_allclose(answers["looked up"], answers["walked"], rtol=1e-6, atol=1e-7)
        padded = one.padded()
        np.testing.assert_array_equal(found.features["cells"], padded.observation - one.schema.observation_space.start)
        np.testing.assert_array_equal(found.action, padded.action - one.schema.action_space.start)
        np.testing.assert_array_equal(found.reward, padded.reward)


def test_a_textbook_example_worked_by_hand():
    """Two episodes of one and two steps; π takes action 1 with 0.8, μ with 0.5.

    ρ: episode 0 (actions 1): 1.6, return 2. Episode 1 (actions 0, 1): 0.4, then 0.64; rewards 1, 3.
    IS = (3.2 + 2.56)/2 = 2.88; WIS = 5.76/2.24; PDIS = (3.2 + 0.4 + 1.92)/2 = 2.76;
    WPDIS = (1.6·2 + 0.4·1)/2 + (0.64·3)/(1.6 + 0.64).
    """
    schema = Schema(spaces.Discrete(1), spaces.Discrete(2))
    log = checked_log(
        schema, np.zeros(5, int), np.array([1, 0, 1]), [2, 1, 3], [1, 2], np.ones(2, bool), np.log([0.5] * 3)
    )
    policy = Table([[0.2, 0.8]])
    expected = {
        "ordinary": 2.88,
        "weighted": 5.76 / 2.24,
        "per_decision": 2.76,
        "weighted_per_decision": 1.8 + 1.92 / 2.24,
    }
    for kind, value in expected.items():
        assert ImportanceSampling(kind).estimate(KEY, policy, log).value == pytest.approx(value, abs=1e-5)


def plain_q(log, policy, episodes, discount=1.0):
    """Q with k steps to go as cell means, by dictionaries: `{k: {(o, a): value}}`.

    The last step of the horizon tells of its reward, and not of how episodes go on.
    """
    pi = np.asarray(policy.probabilities, float)
    horizon = log.max_length
    tables = {0: {}}

    def mean(pairs):
        cells = {}
        for cell, number in pairs:
            cells.setdefault(cell, []).append(number)
        return {cell: sum(numbers) / len(numbers) for cell, numbers in cells.items()}

    def value(k, o):
        return sum(pi[o, a] * tables[k].get((o, a), 0.0) for a in range(2))

    def steps():
        for i in episodes:
            episode = log[i]
            for t in range(len(episode.reward)):
                yield i, t, episode, (int(episode.observation[t]), int(episode.action[t]))

    reward = mean((cell, float(episode.reward[t])) for _, t, episode, cell in steps())
    for k in range(1, horizon + 1):
        onward = mean(
            (
                cell,
                0.0
                if t == len(episode.reward) - 1 and log.terminated[i]
                else discount * value(k - 1, int(episode.observation[t + 1])),
            )
            for i, t, episode, cell in steps()
            if t < horizon - 1
        )
        tables[k] = {cell: reward[cell] + (onward.get(cell, 0.0) if k > 1 else 0.0) for cell in reward}
    return tables, value


@pytest.mark.parametrize("asked", [Returns(), DISCOUNTED])
def test_tabular_fitted_q(log, asked):
    _, value = plain_q(log, TARGET, range(len(log)), asked.discount)
    expected = np.mean([value(log.max_length, int(episode.observation[0])) for episode in log])
    estimate = FittedQ().estimate(KEY, TARGET, log, returns=asked)
    assert estimate.value == pytest.approx(expected, abs=1e-5)
    assert exact_value(TARGET, discount=asked.discount) in estimate.interval
    assert estimate.verdict == "trust", estimate.reasons


@pytest.mark.parametrize(("weighted_form", "asked"), [(False, Returns()), (True, Returns()), (True, DISCOUNTED)])
def test_doubly_robust(log, weighted_form, asked):
    """DR and WDR with the folds that the estimator used, from the definitions."""
    discount = asked.discount
    method = DoublyRobust(weighted_form)
    own = jax.random.fold_in(key_for(KEY, "log"), zlib.crc32(method.name.encode()))
    key_folds = jax.random.split(own, 3)[0]
    fold = np.asarray(jax.random.permutation(key_folds, len(log))) % 5
    steps, horizon = plain_steps(log, target_probability), log.max_length
    rows = []
    for number in range(5):
        tables, value = plain_q(log, TARGET, [i for i in range(len(log)) if fold[i] != number], discount)
        for i in np.flatnonzero(fold == number):
            episode, deltas = log[int(i)], []
            for t in range(len(episode.reward)):
                o, a = int(episode.observation[t]), int(episode.action[t])
                over = t == horizon - 1 or (t == len(episode.reward) - 1 and log.terminated[i])
                after = 0.0 if over else discount * value(horizon - t - 1, int(episode.observation[t + 1]))
                delta = float(episode.reward[t]) + after - tables[horizon - t].get((o, a), 0.0)
                deltas.append(discount**t * delta)
            rows.append((value(horizon, int(episode.observation[0])), deltas, steps[i]))
    total = sum(v for v, _, _ in rows) / len(rows)
    for t in range(horizon):
        rho = [math.prod(ratio for ratio, _ in ratios[: t + 1]) for _, _, ratios in rows]
        paid = sum(w * deltas[t] for w, (_, deltas, _) in zip(rho, rows, strict=True) if t < len(deltas))
        total += paid / (sum(rho) if weighted_form else len(rows))
    estimate = method.estimate(KEY, TARGET, log, returns=asked)
    assert estimate.value == pytest.approx(total, abs=1e-5)
    assert exact_value(TARGET, discount=discount) in estimate.interval


def test_linear_regression_on_one_hot_features_is_the_table(log):
    values = [
        fit_values(*fitted_to(log, regression), jnp.ones(len(log))).v
        for regression in (default_regression(log), LinearQ(1e-4))
    ]
    np.testing.assert_allclose(np.asarray(values[0])[:, 0], np.asarray(values[1])[:, 0], atol=2e-3)


@pytest.mark.slow
def test_a_network_finds_the_same_value(log):
    estimate = FittedQ(NetworkQ(width=8, updates=60, learning_rate=1e-2)).estimate(KEY, TARGET, log)
    assert estimate.value == pytest.approx(FittedQ().estimate(KEY, TARGET, log).value, abs=0.03)
    assert estimate.verdict == "caution"
    assert "network was fitted once" in estimate.reasons


def test_values_after_the_end_are_zero(log):
    q, v = cross_fitted(jax.random.key(1), *fitted_to(log, default_regression(log)))
    lengths = log.lengths
    for i in range(len(log)):
        assert not q[i, lengths[i] :].any()
        assert not v[i, lengths[i] + 1 :].any()
        assert log.terminated[i] <= (v[i, lengths[i]] == 0)


class NeverTreats(Policy):
    def __call__(self, carry, observation):
        return carry, Categorical(logits=jnp.array([0.0, -jnp.inf]))


def test_no_support_is_named():
    always = collect(jax.random.key(3), triage(), Table([[0.0, 1.0]] * 4), 50)
    for estimate in (
        method.estimate(KEY, NeverTreats(), always)
        for method in (ImportanceSampling("ordinary"), ImportanceSampling("weighted"), DoublyRobust())
    ):
        assert estimate.status == "no support"
        assert estimate.value is None
        assert estimate.interval is None
        assert estimate.verdict == "do not trust"
        assert "never takes" in str(estimate)
    unseen = FittedQ().estimate(KEY, NeverTreats(), always)
    assert unseen.verdict == "do not trust"
    assert "never done there" in unseen.reasons


def test_missing_probabilities_are_named_and_can_be_fitted(log):
    unknown = log.with_log_prob(np.full_like(log.log_prob, np.nan), behavior="logged")
    estimate = ImportanceSampling().estimate(KEY, TARGET, unknown)
    assert estimate.status == "no probabilities"
    assert "fit_behavior" in estimate.explanation
    fitted = ImportanceSampling().estimate(KEY, TARGET, fit_behavior(unknown))
    (checked,) = [d for d in fitted.diagnostics if d.name == "propensities"]
    assert "calibrated" in checked.sentence
    assert fitted.value == pytest.approx(ImportanceSampling().estimate(KEY, TARGET, log).value, abs=0.1)


class Gaussian(Policy):
    mean: float

    def __call__(self, carry, observation):
        return carry, Normal(self.mean, 1.0)


def test_continuous_actions_are_weighed_by_densities():
    rng = np.random.default_rng(0)
    actions = rng.normal(size=400)
    schema = Schema(spaces.Discrete(1), spaces.Box(-np.inf, np.inf, ()))
    density = -0.5 * actions**2 - 0.5 * math.log(2 * math.pi)
    log = checked_log(schema, np.zeros(800, int), actions, actions, np.ones(400, int), np.ones(400, bool), density)
    estimate = ImportanceSampling().estimate(KEY, Gaussian(0.3), log)
    w = np.exp(0.3 * actions - 0.045)
    assert estimate.value == pytest.approx((w * actions).sum() / w.sum(), abs=1e-5)
    assert FittedQ(LinearQ()).estimate(KEY, Gaussian(0.3), log).value == pytest.approx(0.3, abs=0.02)


def test_huge_weights_stay_finite():
    """ρ up to e^600 and down to e^-600: ratios survive, since weights live in log space."""
    n, T = 40, 300
    schema = Schema(spaces.Discrete(1), spaces.Discrete(2))
    actions = np.random.default_rng(1).integers(0, 2, n * T)
    behavior = np.where(actions == 1, np.log(0.12), np.log(0.88))
    log = checked_log(
        schema, np.zeros(n * (T + 1), int), actions, np.ones(n * T), np.full(n, T), np.ones(n, bool), behavior
    )
    for kind in ("weighted", "weighted_per_decision"):
        estimate = ImportanceSampling(kind).estimate(KEY, Table([[0.12, 0.88]]), log)
        assert estimate.value == pytest.approx(T, rel=1e-6)
        assert estimate.verdict == "do not trust"


def test_positive_definite_matrices_are_inverted():
    rows = np.random.default_rng(0).normal(size=(3, 40, 12))
    gram = np.einsum("bnd,bne->bde", rows, rows) + 1e-3 * np.eye(12)
    found = np.asarray(jax.jit(jax.vmap(inverse))(jnp.asarray(gram, jnp.float32)), float)
    assert np.abs(found @ gram - np.eye(12)).max() < 1e-4

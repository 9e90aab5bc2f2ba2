"""GPS, SVG and the residual-corrected model of Abbeel et al. as special cases of counterfactual search."""

import json

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.flatten_util import ravel_pytree

from coulda.environments.pendulum import Pendulum
from coulda.hindsight import Prior
from coulda.hindsight.observed import ObservedStates
from coulda.planners import lqr
from coulda.planners.time_varying_lqr import time_varying_lqr
from coulda.policies.trainable import FeedforwardPolicy, LinearGaussianPolicy
from coulda.pomdp import rollout
from coulda.search import PolicySearch, ReturnWeightedRegression, ValueGradient
from coulda.search.guided import CoefficientNoisePOMDP, CoefficientPrior, RegulatorPlanner, fit_coefficients
from coulda.studies import relatives

N, ROLLOUTS, STEP_SIZE, SCALE, TEMPERATURE = 3, 4, 0.05, 0.7, 2.0
Q, R = np.diag([0.3, 0.1]), np.array([[0.05]])


def linear_scm(horizon: int) -> CoefficientNoisePOMDP:
    rng = np.random.default_rng(0)
    prior = CoefficientPrior(
        log_weights=jnp.log(jnp.array([0.3, 0.7])),
        mean=jnp.asarray(np.array([[1.0, 0.1, 0.0, 0.1], [0.2, 0.9, 0.5, 0.0]]) + 0.1 * rng.normal(size=(2, 2, 4))),
        scale=jnp.asarray(np.array([[[0.3, 0.0], [0.1, 0.2]], [[0.2, 0.0], [-0.1, 0.4]]])),
        columns=jnp.array([0.3, 0.2, 0.1, 0.4]),
    )
    return CoefficientNoisePOMDP(prior, Q=Q, R=R, initial_mean=[1.0, 0.0], initial_scale=[0.5, 0.5], horizon=horizon)


def direct_gps(prior, policy, episodes, fresh, action_noise, ratio):
    """One step of GPS, written out: fit dynamics to each trajectory, solve the LQR, sample it, regress π on it.

    Independent of the library: coefficients by conditioning one big Gaussian, the regulator by the value function's
    quadratic and linear terms, the gradient by hand.
    """
    log_w, M, L, v = (np.asarray(a) for a in (prior.log_weights, prior.mean, prior.scale, prior.columns))
    K, b, log_sigma = (np.asarray(a) for a in (policy.weight, policy.bias, policy.log_scale))
    states, actions = np.asarray(episodes.observation), np.asarray(episodes.action)
    n, k, sigma = 2, 1, np.exp(log_sigma)
    score = {"weight": np.zeros_like(K), "bias": np.zeros_like(b), "log_scale": np.zeros_like(log_sigma)}
    for i in range(len(states)):
        A, B, c = [], [], []
        for t in range(actions.shape[1]):
            x = np.concatenate([states[i, t], actions[i, t], [1.0]])
            H = np.kron(np.eye(n), x)  # s' = H vec(W), rows of W one after another
            covariance = [np.kron(row @ row.T, np.diag(v**2)) for row in L]
            gaussian = [(H @ m.ravel(), H @ s @ H.T) for m, s in zip(M, covariance, strict=True)]
            log_p = [
                lw
                - 0.5 * (states[i, t + 1] - m) @ np.linalg.solve(s, states[i, t + 1] - m)
                - 0.5 * np.log(np.linalg.det(s))
                for lw, (m, s) in zip(log_w, gaussian, strict=True)
            ]
            share = np.exp(log_p - np.max(log_p)) / np.exp(log_p - np.max(log_p)).sum()
            chosen = int(fresh.transition["component"][i, t] >= share[0])
            drawn = (M[chosen] + L[chosen] @ np.asarray(fresh.transition["normal"][i, t]) * v).ravel()
            gain = covariance[chosen] @ H.T @ np.linalg.inv(gaussian[chosen][1])
            W = (drawn + gain @ (states[i, t + 1] - H @ drawn)).reshape(n, -1)
            A.append(W[:, :n]), B.append(W[:, n : n + k]), c.append(W[:, -1])
        P, p, law = np.zeros((n, n)), np.zeros(n), []
        for t in reversed(range(len(A))):
            Quu = R + B[t].T @ P @ B[t]
            feedback = np.linalg.solve(Quu, B[t].T @ P @ A[t])
            open_loop = np.linalg.solve(Quu, B[t].T @ (P @ c[t] + p))
            closed = A[t] - B[t] @ feedback
            drift = c[t] - B[t] @ open_loop
            p = feedback.T @ R @ open_loop + closed.T @ (P @ drift + p)
            P = Q + feedback.T @ R @ feedback + closed.T @ P @ closed
            law.insert(0, (feedback, open_loop))
        log_weights, scores = [], []
        for noise in np.asarray(action_noise[i]):
            s, gain, log_ratio = states[i, 0], 0.0, 0.0
            d_weight, d_bias, d_log_scale = np.zeros_like(K), np.zeros_like(b), np.zeros_like(log_sigma)
            for t, u in enumerate(noise):
                a = -law[t][0] @ s - law[t][1] + SCALE * u
                error = (a - K @ s - b) / sigma
                log_ratio += (-0.5 * error**2 - log_sigma + 0.5 * u**2 + np.log(SCALE)).sum()
                d_weight += np.outer(error / sigma, s)
                d_bias += error / sigma
                d_log_scale += error**2 - 1
                gain -= s @ Q @ s + a @ R @ a
                s = A[t] @ s + B[t] @ a + c[t]
            log_weights.append(gain / TEMPERATURE + (log_ratio if ratio else 0.0))
            scores.append((d_weight, d_bias, d_log_scale))
        weights = np.exp(log_weights - np.max(log_weights))
        weights /= weights.sum() * len(states)
        for w, parts in zip(weights, scores, strict=True):
            for name, part in zip(score, parts, strict=True):
                score[name] += w * part
    return {name: getattr(policy, name) + STEP_SIZE * value for name, value in score.items()}


@pytest.mark.parametrize("ratio", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_cf_gps_with_a_linear_scm_and_a_regulator_is_gps(ratio):
    with jax.enable_x64(True), jax.numpy_dtype_promotion("standard"):  # steps are int32, sizes int64
        environment, model = Pendulum(horizon=4), linear_scm(horizon=4)
        policy = LinearGaussianPolicy(jnp.array([[0.3, -0.2]]), jnp.array([0.1]), jnp.array([0.2]))
        objective = ReturnWeightedRegression(num_rollouts=ROLLOUTS, temperature=TEMPERATURE, ratio=ratio)
        planner = RegulatorPlanner(model, SCALE)
        optimizer = optax.sgd(STEP_SIZE)
        search = PolicySearch(environment, model, ObservedStates(model), optimizer, planner, objective, N)
        key, state = jax.random.key(3), search.init(policy)
        updated, info = search.step(key, state)
        # What the step drew, drawn again.
        key_collect, _, key_infer, key_improve = jax.random.split(key, 4)
        _, episodes = search.collect(key_collect, state)
        draw = jax.vmap(model.scenario_prior.sample)
        fresh = draw(jax.random.split(key_infer, N))
        keys = jax.vmap(lambda k: jax.random.split(k, ROLLOUTS))(jax.random.split(jax.random.split(key_improve)[0], N))
        expected = direct_gps(model.prior, policy, episodes, fresh, jax.vmap(draw)(keys).action, ratio)
        for name, value in expected.items():
            np.testing.assert_allclose(getattr(updated.policy, name), value, rtol=1e-6, atol=1e-6)
        assert 1.0 < info.objective.effective_sample_size <= ROLLOUTS
        assert np.abs(updated.policy.weight - policy.weight).max() > 1e-3, "and it has moved"


play = eqx.filter_jit(lambda model, policy, scenario: rollout(model, policy, scenario).episode)
draw = eqx.filter_jit(lambda model, key: model.scenario_prior.sample(key))
infer = eqx.filter_jit(lambda source, key, episode: source.infer(key, episode))


def test_coefficients_inferred_from_pairs_of_states_replay_them():
    model = linear_scm(horizon=6)
    policy = LinearGaussianPolicy.zero(2, 1)
    episode = play(model, policy, draw(model, jax.random.key(0)))
    again = play(model, policy, infer(ObservedStates(model, behavior=policy), jax.random.key(1), episode))
    np.testing.assert_allclose(again.observation, episode.observation, atol=1e-4)
    np.testing.assert_allclose(again.action, episode.action, atol=1e-4)
    other = play(model, policy, infer(Prior(model), jax.random.key(1), episode))
    assert np.abs(other.observation - episode.observation).max() > 0.1


def test_coefficients_drawn_from_their_posteriors_have_the_prior_back():
    # Lemma 1 for one transition: p(u) = ∫ p(u | s') p(s'). Moments of 4000 draws, five standard errors each.
    model = linear_scm(horizon=1)
    state, action = jnp.array([0.4, -0.8]), jnp.array([0.5])

    @jax.jit
    @jax.vmap
    def draws(keys):
        u, fresh = (model.transition_noise.sample(key) for key in keys)
        inferred = model.transition_posterior(state, action, model.transition(state, action, u), fresh)
        return {"prior": u, "posterior": inferred, "wrong": {**inferred, "normal": fresh["normal"] * 0.8}}

    found = draws(jax.random.split(jax.random.key(0), (4000, 2)))
    coefficients = {name: np.asarray(jax.vmap(model.coefficients)(u)) for name, u in found.items()}
    error = coefficients["prior"].std(0) / np.sqrt(4000)
    gap = {name: np.abs(w.mean(0) - coefficients["prior"].mean(0)) / error for name, w in coefficients.items()}
    spread = {name: np.abs(w.std(0) / coefficients["prior"].std(0) - 1).max() for name, w in coefficients.items()}
    assert gap["posterior"].max() < 5 * np.sqrt(2)
    assert spread["posterior"] < 5 / np.sqrt(4000)
    assert spread["wrong"] > 5 / np.sqrt(4000)


def test_the_time_varying_regulator_is_the_regulator_where_nothing_varies():
    A, B = np.array([[1.0, 0.1], [0.0, 0.9]]), np.array([[0.0], [0.5]])
    expected = lqr(A, B, Q, R, scale=1.0, horizon=5).gain
    stacked = (jnp.asarray(np.broadcast_to(x, (5, *x.shape)), float) for x in (A, B, np.zeros(2)))
    planner = time_varying_lqr(*stacked, jnp.asarray(Q, float), jnp.asarray(R, float), scale=jnp.ones(()))
    np.testing.assert_allclose(planner.gain, expected, atol=1e-5)
    np.testing.assert_allclose(planner.offset, 0, atol=1e-6)


def test_a_mixture_of_linear_models_is_found_again():
    rng = np.random.default_rng(0)
    state, action = rng.uniform(-2, 2, size=(800, 2)), rng.normal(size=(800, 1))
    x = np.concatenate([state, action, np.ones((800, 1))], axis=1)
    truth = np.array([[[1.0, 0.1, 0.0, 0.0], [0.5, 0.9, 0.2, 0.3]], [[0.8, 0.1, 0.0, 0.2], [-0.5, 0.9, 0.2, -0.3]]])
    which = (state[:, 0] > 0).astype(int)
    following = np.einsum("ijk,ik->ij", truth[which], x) + 0.01 * rng.normal(size=(800, 2))
    prior = fit_coefficients(state, action, following, num_components=2, columns=np.full(4, 0.1))
    np.testing.assert_allclose(prior.mean, truth, atol=0.01)
    np.testing.assert_allclose(np.exp(prior.log_weights), np.bincount(which) / 800, atol=0.02)


@pytest.mark.slow
def test_value_gradients_are_counterfactual_evaluations_of_perturbed_policies():
    with jax.enable_x64(True), jax.numpy_dtype_promotion("standard"):  # steps are int32, sizes int64
        environment, model = Pendulum(horizon=10), Pendulum(horizon=10, gravity=4.0)
        spaces = environment.observation_space, environment.action_space
        policy = FeedforwardPolicy(jax.random.key(0), *spaces, width=4, depth=1)
        source = ObservedStates(model, behavior=policy)
        search = PolicySearch(environment, model, source, optax.sgd(1.0), objective=ValueGradient(), num_episodes=4)
        state = search.init(policy)
        _, episodes = search.collect(jax.random.key(1), state)
        scenarios = search.infer(jax.random.key(2), state, episodes)
        improved, _, info = search.improve(jax.random.key(3), state, scenarios)
        arrays, rest = eqx.partition(policy, eqx.is_inexact_array)
        flat, unflatten = ravel_pytree(arrays)
        gradient = ravel_pytree(eqx.filter(improved.policy, eqx.is_inexact_array))[0] - flat

        @jax.jit
        def evaluate(theta):
            returns = jax.vmap(lambda u: rollout(model, eqx.combine(unflatten(theta), rest), u).episode_return)
            return jnp.mean(returns(scenarios))

        perturbed = 1e-5 * jnp.eye(flat.size)
        central = [(evaluate(flat + d) - evaluate(flat - d)) / 2e-5 for d in perturbed]
        np.testing.assert_allclose(gradient, central, rtol=1e-3, atol=1e-3 * float(jnp.abs(gradient).max()))
        # The noise is that of the log: π, being μ, has in the model the return that was logged.
        np.testing.assert_allclose(info.model_return, episodes.episode_return.mean(), rtol=1e-9)
        assert abs(evaluate(flat + perturbed[0] * 1e4) - info.model_return) > 1e-6


def test_the_residual_corrected_model_follows_the_logged_trajectory():
    environment, wrong = Pendulum(), Pendulum(gravity=3.0, friction=0.0)
    policy = LinearGaussianPolicy(jnp.array([[-2.0, -1.0]]), jnp.zeros(1), jnp.zeros(1))
    episode = play(environment, policy, draw(environment, jax.random.key(0)))
    source = ObservedStates(wrong, behavior=policy)
    again = play(wrong, policy, infer(source, jax.random.key(1), episode))
    np.testing.assert_allclose(again.observation, episode.observation, atol=1e-5)
    np.testing.assert_allclose(again.action, episode.action, atol=1e-5)
    uncorrected = play(wrong, policy, infer(source.given(1), jax.random.key(1), episode))
    np.testing.assert_allclose(uncorrected.observation[0], episode.observation[0], atol=1e-6)
    assert np.abs(uncorrected.observation - episode.observation).max() > 0.3


@pytest.mark.slow
def test_the_experiments_run(tmp_path):
    relatives.reproduce(tmp_path, relatives.SMOKE)
    for name in ("gps", "svg"):
        record = json.loads((tmp_path / name / "curves.json").read_text())
        assert all(np.isfinite(np.array(curve["returns"])).all() for curve in record["curves"].values())
        assert (tmp_path / name / "curves.svg").stat().st_size > 1000

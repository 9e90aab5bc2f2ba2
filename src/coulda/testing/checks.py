"""Checks of models, policies and SCMs."""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from coulda.errors import CouldaError
from coulda.mechanisms import Reparameterization
from coulda.noise import NoiseDistribution
from coulda.policies import AnyAction
from coulda.pomdp import POMDP, FinitePOMDP, Planner, Policy, Scenario, Trajectory, rollout
from coulda.pomdp.rollout import taken_log_probs
from coulda.pomdp.scenario import LazyNoise, at_step
from coulda.scm import SCM


class CheckError(AssertionError):
    """A part that breaks a law of this library; the message says how to mend it."""


def check_pomdp(model: POMDP, *, seed: int = 0, episodes: int = 32) -> None:
    """Check a model of your own: shapes, spaces, determinism, finite rewards, and that all chance is in the noise.

    For a `FinitePOMDP` also that its probabilities fit its kernels, and that inferred noise replays what happened.
    """
    refuse(not isinstance(model, POMDP), f"{type(model).__name__} is not a POMDP. Subclass coulda.pomdp.POMDP.")
    _check_structure(model)
    scenarios, fresh = (scenarios_of(model, jax.random.split(jax.random.key(s), episodes)) for s in (seed, seed + 1))
    _check_kernels(model, first_of(scenarios))
    trajectories = trajectories_of(model, scenarios)
    _check_values(model, trajectories)
    if isinstance(model, FinitePOMDP):
        _check_finite(model, trajectories, fresh)


def check_policy(policy: Policy, model: POMDP, *, seed: int = 0, episodes: int = 32) -> None:
    """Check a policy of your own in `model`: it sees the history only, and fits `rollout` and the actions."""
    name = type(policy).__name__
    refuse(
        isinstance(policy, Planner) or not isinstance(policy, Policy),
        f"{name} is not a Policy but sees the state, or nothing. Subclass coulda.pomdp.Policy: "
        "`__call__(carry, observation)`.",
    )
    try:
        policy.check_spaces(model.observation_space, model.action_space)
    except CouldaError as error:
        raise CheckError(str(error)) from error
    try:
        _check_carry(policy, model)
        _check_history_only(policy, model, jax.random.split(jax.random.key(seed), episodes))
    except jax.errors.UnexpectedTracerError as error:
        raise CheckError(_not_in_the_history(name)) from error


def _check_history_only(policy: Policy, model: POMDP, keys: Array) -> None:
    """The policy's probabilities follow from the history alone, and it never takes an impossible action."""
    name = type(policy).__name__
    run = eqx.filter_jit(lambda m, p, keys: jax.vmap(lambda k: rollout(m, p, m.scenario_prior.sample(k)))(keys))
    episode = run(model, policy, keys).episode
    bad = ~(np.isfinite(episode.log_prob) | ~np.asarray(episode.live))
    refuse(
        bool(bad.any()),
        f"{name} gave its own action probability zero or NaN at step {_first(bad)} (episode, step). "
        "Return finite logits, or -inf only for actions that are never taken.",
    )
    replayed = jax.jit(jax.vmap(lambda e: taken_log_probs(policy, e)))(episode)
    differs = ~np.isclose(replayed, episode.log_prob, rtol=1e-4, atol=1e-4) & np.asarray(episode.live)
    refuse(bool(differs.any()), _not_in_the_history(name))


def _not_in_the_history(name: str) -> str:
    return (
        f"{name} acts differently when it is given the same history again: it uses something that is not in the "
        "history, such as the hidden state. Use only the carry and the observation."
    )


def check_scm(scm: SCM, *, seed: int = 0, draws: int = 32) -> None:
    """Check a model of your own: mechanisms are deterministic and finite, and their posteriors replay."""
    for name in scm.order:
        parents = tuple(scm.shapes[parent] for parent in scm.graph[name])
        _check_no_draws(f"mechanism '{name}'", scm.mechanisms[name], parents, scm.noise_shapes[name])
    sample = jax.jit(jax.vmap(scm.noise_prior.sample))
    noise, fresh = (sample(jax.random.split(jax.random.key(s), draws)) for s in (seed, seed + 1))
    # Two programs, traced apart: what a mechanism draws while it is traced would differ between them.
    values, again = (jax.jit(jax.vmap(lambda u: scm.simulate(u)))(noise) for _ in range(2))
    for name in scm.order:
        refuse(not same(values[name], again[name]), _not_deterministic(f"mechanism '{name}'"))
        finite = all(np.isfinite(np.asarray(leaf, float)).all() for leaf in jax.tree.leaves(values[name]))
        refuse(not finite, f"'{name}' is not finite for some noise that its prior gives. Bound its mechanism.")
    for name, mechanism in scm.mechanisms.items():
        if isinstance(mechanism, Reparameterization) and isinstance(scm.noise[name], mechanism.noise_family):
            _check_posterior(scm, name, mechanism, values, fresh[name])


def _check_posterior(scm: SCM, name: str, mechanism: Reparameterization, values: dict[str, Any], fresh: Any) -> None:
    parents = tuple(values[parent] for parent in scm.graph[name])

    def replay(parents: tuple[Any, ...], value: Any, fresh: Any) -> Any:
        noise, _ = mechanism.posterior(scm.noise[name], parents, value, fresh)
        return mechanism(parents, noise)

    replayed = jax.jit(jax.vmap(replay))(parents, values[name], fresh)
    refuse(
        not _close(replayed, values[name]),
        f"the posterior of '{name}' gives noise that does not reproduce its value. Correct `posterior`.",
    )


def _check_structure(model: POMDP) -> None:
    horizon = model.horizon
    refuse(not isinstance(horizon, int) or horizon < 1, f"horizon is {horizon!r}; make it an int of at least 1.")
    for name in ("initial_noise", "transition_noise", "observation_noise"):
        noise = getattr(model, name)
        found = type(noise).__name__
        refuse(not isinstance(noise, NoiseDistribution), f"{name} is a {found}; return a NoiseDistribution.")
    shapes = jax.eval_shape(model.scenario_prior.sample, jax.random.key(0))
    refuse(not isinstance(shapes, Scenario), f"scenario_prior gives a {type(shapes).__name__}, not a Scenario.")
    lengths = {"transition": horizon, "observation": horizon + 1, "action": horizon}
    for name, length in lengths.items():
        field = getattr(shapes, name)
        leading = {leaf.shape[:1] for leaf in jax.tree.leaves(field)}
        refuse(
            not isinstance(field, LazyNoise) and leading - {(length,)} != set(),
            f"scenario.{name} must lead with time, [{length}, ...]; its leaves lead with {sorted(leading)}.",
        )


def _check_kernels(model: POMDP, scenario: Scenario) -> None:
    """Shapes, determinism and no draws, kernel by kernel."""
    u = [at_step(noise, 0) for noise in (scenario.transition, scenario.observation)]
    action = _any_action(model)
    state = jax.eval_shape(model.initial, scenario.initial)
    moved = jax.eval_shape(model.transition, state, action, u[0])
    before, after = describe(state), describe(moved)
    refuse(before != after, f"transition turns a state {before} into {after}. Keep structure, shapes and dtypes.")
    reward = jax.eval_shape(model.reward, state, action, moved)
    scalar = reward.shape == () and jnp.issubdtype(reward.dtype, jnp.floating)
    refuse(not scalar, f"reward is {describe(reward)}; return a float scalar, float32[].")
    over = jax.eval_shape(model.terminal, state)
    boolean = over.shape == () and over.dtype == jnp.bool_
    refuse(not boolean, f"terminal is {describe(over)}; return a boolean scalar, bool[].")
    _check_no_draws("initial", model.initial, scenario.initial)
    _check_no_draws("transition", model.transition, state, action, u[0])
    _check_no_draws("observe", model.observe, state, u[1])
    _check_no_draws("reward", model.reward, state, action, moved, None)
    # Two programs, traced apart: what a kernel draws while it is traced would differ between them.
    first, second = (jax.jit(lambda: _one_of_each(model, scenario, action, u))() for _ in range(2))
    for name, value in first.items():
        refuse(not same(value, second[name]), _not_deterministic(name))


def _one_of_each(model: POMDP, scenario: Scenario, action: Any, u: list[Any]) -> dict[str, Any]:
    state = model.initial(scenario.initial)
    moved = model.transition(state, action, u[0])
    return {
        "initial": state,
        "transition": moved,
        "observe": model.observe(state, u[1]),
        "reward": model.reward(state, action, moved),
        "terminal": model.terminal(state),
    }


def _check_values(model: POMDP, trajectories: Trajectory) -> None:
    episode = trajectories.episode
    bad = ~np.isfinite(episode.reward)
    refuse(
        bool(bad.any()),
        f"reward is {np.asarray(episode.reward)[bad][:1]} in (episode, step) {_first(bad)}. "
        "Rewards must be finite in every state that can be reached.",
    )
    refuse(
        not np.asarray(episode.live)[:, 0].any(),
        "every episode is over before its first step. `terminal` should be False in some first state.",
    )
    _check_space("observation", model.observation_space, episode.observation)
    _check_space("action", model.action_space, episode.action)
    try:
        log_prob = jax.jit(jax.vmap(jax.vmap(lambda o, s: model.observation_log_prob(o, s))))(
            episode.observation, trajectories.state
        )
    except NotImplementedError:
        return  # It is asked of the model only by sources that weigh scenarios, which will say so.
    bad = ~np.isfinite(np.asarray(log_prob))
    refuse(
        bool(bad.any()),
        f"observation_log_prob is {np.asarray(log_prob)[bad][:1]} for an observation that `observe` gave, in (episode, "
        f"step) {_first(bad)}. It must be the log-probability of what `observe` does, with its noise integrated out.",
    )


def _check_finite(model: FinitePOMDP, trajectories: Trajectory, fresh: Scenario) -> None:
    """Probabilities against kernels, on what happened; and noise posteriors by replay."""
    transition, reward, terminal = (np.asarray(table) for table in model.tables())
    size = (model.num_actions, model.num_states, model.num_states)
    shapes, expected = (transition.shape, reward.shape, terminal.shape), (size, size, size[1:2])
    refuse(shapes != expected, f"tables have shapes {shapes}; make them {expected}.")
    sums = transition.sum(-1)
    refuse(not np.allclose(sums, 1, atol=1e-4), f"a row of the transition table sums to {sums.min():g}, not 1.")
    facts = jax.tree.map(np.asarray, _all_finite_facts(model, trajectories, fresh))
    action, index, live = np.asarray(trajectories.episode.action), np.asarray(trajectories.state.index), facts.live
    table = transition[action, index[:, :-1], index[:, 1:]][live]
    by_function = np.exp(facts.transition_log_prob)[live]
    refuse(
        not np.allclose(by_function, table, atol=1e-5) or not (table > 0).all(),
        "transition_log_prob, the transition table and `transition` disagree: a transition that happened has "
        f"probability {table.min():g} in the table and {by_function.min():g} by the function.",
    )
    refuse(
        not np.isfinite(facts.initial_log_prob).all(),
        "initial_log_prob holds a first state that `initial` gave to be impossible.",
    )
    refuse(
        not (facts.listed | ~live).all(),
        f"states(previous_action, observation) lacks the true state at (episode, step) {_first(~facts.listed & live)}. "
        "It must list every state in which the observation may be seen.",
    )
    for name, (replayed, seen) in facts.replays.items():
        refuse(
            not same(replayed, seen),
            f"{name}_posterior gives noise that does not replay what happened. It must be a draw of p(u | what "
            "happened), so that the kernel returns the same value.",
        )


class _FiniteFacts(NamedTuple):
    """What a finite model says of one trajectory."""

    live: Array
    initial_log_prob: Array
    transition_log_prob: Array
    listed: Array
    replays: dict[str, tuple[Any, Any]]


@eqx.filter_jit
def _all_finite_facts(model: FinitePOMDP, trajectories: Trajectory, noise: Scenario) -> _FiniteFacts:
    return jax.vmap(_finite_facts, in_axes=(None, 0, 0))(model, trajectories, noise)


def _finite_facts(model: FinitePOMDP, trajectory: Trajectory, noise: Scenario) -> _FiniteFacts:
    state, episode = trajectory.state, trajectory.episode
    first, before, after = (jax.tree.map(lambda x, s=s: x[s], state) for s in (0, slice(-1), slice(1, None)))
    previous = jnp.concatenate([jnp.full_like(episode.action[:1], -1), episode.action[:-1]])
    seen = jax.tree.map(lambda leaf: leaf[:-1], episode.observation)
    candidates = jax.vmap(model.states)(previous, seen).index
    u = jax.vmap(model.transition_posterior)(before, episode.action, after, noise.transition)
    moved = jax.vmap(model.transition)(before, episode.action, u)
    moved = jax.tree.map(lambda new, old: jnp.where(episode.live, new, old), moved, after)
    u = jax.vmap(model.observation_posterior)(state, episode.observation, noise.observation)
    return _FiniteFacts(
        live=episode.live,
        initial_log_prob=model.initial_log_prob(first),
        transition_log_prob=jax.vmap(model.transition_log_prob)(before, episode.action, after),
        listed=(candidates == before.index[:, None]).any(-1),
        replays={
            "initial": (model.initial(model.initial_posterior(first, noise.initial)), first),
            "transition": (moved, after),
            "observation": (jax.vmap(model.observe)(state, u), episode.observation),
        },
    )


def _check_carry(policy: Policy, model: POMDP) -> None:
    """One step by hand: the carry keeps its shape, the distribution is the mechanism's family, nothing is drawn."""
    name = type(policy).__name__
    start, (observation, noise) = policy.initial_carry(), _first_observation(model, jax.random.key(0))
    (carry, distribution), again = (jax.jit(lambda o: policy(start, o))(observation) for _ in range(2))
    refuse(not same((carry, distribution), again), _not_deterministic(f"{name}.__call__"))
    family = getattr(model.action_mechanism, "family", None)
    refuse(
        family is not None and not isinstance(distribution, family),
        f"{name} returns a {type(distribution).__name__}; the model's {type(model.action_mechanism).__name__} "
        f"takes a {getattr(family, '__name__', family)}.",
    )
    action = jax.jit(lambda d, u: model.action_mechanism(d, u))(distribution, noise)
    after = jax.jit(lambda c, a: policy.remember(c, a, jnp.zeros(())))(carry, action)
    for method, value in (("__call__", carry), ("remember", after)):
        refuse(
            describe(value) != describe(start),
            f"{name}.{method} gives a carry {describe(value)}; initial_carry is {describe(start)}. Keep structure, "
            "shapes and dtypes, or `rollout` cannot scan.",
        )
    _check_space("action", model.action_space, jax.tree.map(lambda leaf: np.asarray(leaf)[None, None], action))
    _check_no_draws(f"{name}.__call__", policy, start, observation, None)


@eqx.filter_jit
def _first_observation(model: POMDP, key: Array) -> tuple[Any, Any]:
    """And the noise of the first action."""
    scenario = model.scenario_prior.sample(key)
    seen = model.observe(model.initial(scenario.initial), at_step(scenario.observation, 0))
    return seen, at_step(scenario.action, 0)


@eqx.filter_jit
def scenarios_of(model: POMDP, keys: Array) -> Scenario:
    """A scenario of the prior for each key."""
    return jax.vmap(model.scenario_prior.sample)(keys)


@eqx.filter_jit
def trajectories_of(model: POMDP, scenarios: Scenario) -> Trajectory:
    """What `AnyAction` meets in each scenario."""
    actor = AnyAction.of(model)
    return jax.vmap(lambda scenario: rollout(model, actor, scenario))(scenarios)


@jax.jit
def first_of(tree: Any) -> Any:
    """The first of many, in one program."""
    return jax.tree.map(lambda leaf: leaf[0], tree)


@eqx.filter_jit
def _any_action(model: POMDP) -> Any:
    _, distribution = AnyAction.of(model)((), None)
    noise = model.action_mechanism.noise.sample(jax.random.key(0))
    return model.action_mechanism(distribution, noise)


def _check_space(what: str, space: gymnasium.Space, values: Any) -> None:
    """Every value `[episodes, steps, ...]` lies in its space."""
    arrays = jax.tree.map(np.asarray, values)
    count = jax.tree.leaves(arrays)[0].shape[:2]
    for place in np.ndindex(*count):
        value = jax.tree.map(lambda leaf, place=place: np.asarray(leaf[place]), arrays)
        refuse(
            not space.contains(value),
            f"{what} {value!r:.80} ({describe(value)}) at (episode, step) {place} is not in {space}. "
            f"Correct `{what}_space`, or what gives the {what}.",
        )


def _not_deterministic(name: str) -> str:
    """What to say of chance that does not come from the noise."""
    return (
        f"{name} gives different values for the same inputs. Take all chance from the noise `u`, and keep nothing "
        "between calls."
    )


def _check_no_draws(name: str, function: Callable[..., Any], *inputs: Any) -> None:
    """The last input is the noise. A seed in it (unsigned integers, keys) may be used: that is lazy noise."""
    dtypes = [jnp.result_type(leaf) for leaf in jax.tree.leaves(inputs[-1])]
    if any(jnp.issubdtype(d, jnp.unsignedinteger) or jnp.issubdtype(d, jax.dtypes.prng_key) for d in dtypes):
        return
    given = inputs if inputs[-1] is not None else inputs[:-1]
    program = str(jax.make_jaxpr(function)(*given))
    used = [word for word in ("threefry2x32", "random_bits", "rng_bit_generator", "rng_uniform") if word in program]
    refuse(
        bool(used),
        f"{name} draws random numbers itself ({used}). Declare them as noise and take them from `u`.",
    )


def refuse(condition: bool, message: str) -> None:
    """Raise a `CheckError` if the condition holds."""
    if condition:
        raise CheckError(message)


def _first(mask: Any) -> tuple[int, ...]:
    places = np.argwhere(np.asarray(mask))
    return tuple(int(i) for i in places[0]) if len(places) else ()


def same(a: Any, b: Any) -> bool:
    """Whether two trees are equal, bit for bit."""
    if jax.tree.structure(a) != jax.tree.structure(b):
        return False
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return all(np.array_equal(np.asarray(x), np.asarray(y), equal_nan=True) for x, y in pairs)


def _close(a: Any, b: Any) -> bool:
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return all(np.allclose(np.asarray(x), np.asarray(y), rtol=1e-3, atol=1e-3) for x, y in pairs)


def describe(tree: Any) -> Any:
    """Dtypes and shapes of a tree."""
    return jax.tree.map(lambda leaf: f"{jnp.result_type(leaf)}{list(jnp.shape(leaf))}", tree)

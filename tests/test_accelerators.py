"""What is compiled runs on GPUs and TPUs too: every program is lowered for both, and nothing in it belongs to a CPU.

Lowering needs no accelerator, and compiles nothing. It is found there whether a primitive has a rule for the platform,
and what is left to libraries ("custom calls"): a call back to this process, or to LAPACK, could not run there.

What stays on the host, and why, is in `HOST`.
"""

import re
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.extend.core import subjaxprs

from benchmarks import accelerators
from coulda import do
from coulda.counterfactuals import _answer
from coulda.environments import tiger
from coulda.environments.sokoban import Sokoban, UniformLevels, generate, solver_planners
from coulda.evaluation.fitted_q import _refits, _unseen, fit_values
from coulda.evaluation.on_scenarios import _infer, _returns
from coulda.evaluation.regressions import LinearQ, NetworkQ, QuadraticQ, RandomFeaturesQ, TableQ
from coulda.evaluation.steps import Steps
from coulda.hindsight import (
    Amortized,
    Corrected,
    Exact,
    Learned,
    Nuts,
    ObservedStates,
    Particles,
    Prior,
    Tempered,
    simulate_pairs,
)
from coulda.hindsight.conv_draw import ConvDRAW
from coulda.hindsight.hindsight_network import first_network
from coulda.hindsight.pairs import Codings
from coulda.learners import ActorCriticLoss, Imitation, ScenarioTraining
from coulda.learners.impala import improve
from coulda.planners.mixture import ExpertSchedule, prepared
from coulda.policies import UniformPolicy, as_policy
from coulda.policies.conv_lstm import ConvLSTMPolicy
from coulda.policies.trainable import LinearGaussianPolicy
from coulda.pomdp import GumbelMaxChoice, batched, rollout
from coulda.pomdp.rollout import taken_log_probs
from coulda.search import PolicySearch, ReturnWeightedRegression, ValueGradient
from tests import zoo
from tests.zoo_pomdps import pomdps

PLATFORMS = ("cuda", "tpu")
KEY = jax.random.key(0)
LIBRARIES = re.compile(
    r"Sharding|cu(solver|blas|_)\w*|Eigh|Qr|LuDecomposition|ProductOfElementaryHouseholderReflectors"
)
"""Custom calls that the accelerators' own libraries answer."""
HOST = {
    "coulda.environments.sokoban.solver": "a search over graphs, in Numba: the expert's tables of an update",
    "coulda.environments.sokoban.generator": "levels are generated before training",
    "coulda.environments.gym": "a user's environment is Python's: `GymSimulator`, `HostSimulator`, `Inverted`",
    "coulda.policies.host": "another framework's policy runs where it runs",
    "coulda.evaluation.importance": "sums of a few numbers per step, in NumPy, at the speed at which a log is read",
    "coulda.evaluation.intervals": "bootstraps of an estimate's terms, in NumPy",
    "coulda.episodes": "logs are read and written",
}
"""What is never compiled, and why; docs/accelerators.md says the same."""


def traced(program: Callable[..., Any], *arguments: Any) -> Any:
    """The program, for any platform."""
    arrays, other = eqx.partition(arguments, lambda x: eqx.is_array(x) or isinstance(x, jax.ShapeDtypeStruct))
    run = lambda arrays: eqx.filter(program(*eqx.combine(arrays, other)), eqx.is_array)
    return jax.jit(run).trace(arrays)


def foreign(program: Any, platform: str) -> set[str]:
    """Calls back to this process, or else custom calls of a traced program that no library of the platform answers."""
    if callbacks := {name for name in _primitives(program.jaxpr.jaxpr) if "callback" in name}:
        return callbacks  # which cannot even be lowered
    text = program.lower(lowering_platforms=(platform,)).as_text()
    calls = set(re.findall(r"custom_call @([\w.$]+)", text)) | set(re.findall(r'call_target_name = "([^"]+)"', text))
    return {name for name in calls if not LIBRARIES.fullmatch(name)}


def _primitives(jaxpr: Any) -> Iterator[str]:
    """Names of all primitives, also of programs within programs."""
    for equation in jaxpr.eqns:
        yield equation.primitive.name
    for inner in subjaxprs(jaxpr):
        yield from _primitives(inner)


@cache
def sokoban() -> Sokoban:
    levels = UniformLevels(generate(KEY, 4, 7, 7, 1))
    size = {"height": 7, "width": 7, "num_boxes": 1, "horizon": 2, "mask_probability": 0.8}
    return Sokoban(levels=levels, action_mechanism=GumbelMaxChoice(5), **size)


@cache
def network() -> ConvLSTMPolicy:
    return ConvLSTMPolicy(KEY, 7, 7, layers=1, channels=4, ticks=1, units=8)


@cache
def draw() -> ConvDRAW:
    return ConvDRAW(KEY, num_layers=1, channels=4, latents=2)


@cache
def played(name: str) -> tuple[Any, Any, Any, Any]:
    """A model, scenarios `[2, ...]`, episodes of them, and a policy; of all that is drawn the shapes alone."""
    if name == "sokoban":
        model, policy = sokoban(), network()
    else:
        model, policy = pomdps()[name].model, pomdps()[name].behavior

    def play(model, policy):
        scenarios = jax.vmap(model.scenario_prior.sample)(jax.random.split(KEY, 2))
        return scenarios, jax.vmap(lambda u: rollout(model, policy, u).episode)(scenarios)

    return model, *eqx.filter_eval_shape(play, model, policy), policy


@cache
def solved() -> tuple[Any, Any]:
    """Scenarios of PO-Sokoban, and what the solver would do in them; it searches, so that they are drawn."""
    scenarios = jax.vmap(sokoban().scenario_prior.sample)(jax.random.split(KEY, 2))
    return scenarios, solver_planners(scenarios, 1)


def acting(name: str) -> tuple[Any, ...]:
    """What IMPALA's actors and `PolicySearch.collect` run."""
    model, _, _, policy = played(name)
    draw_one = lambda key: rollout(model, policy, model.scenario_prior.sample(key))
    return lambda keys: batched(draw_one, keys), jax.random.split(KEY, 8)


def inferring(source: Any, name: str) -> tuple[Any, ...]:
    """What CF-PE runs: draws, replay and shift."""
    model, _, episodes, _ = played(name)
    episode = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), episodes)
    return lambda s, k, e: _infer(model, s, k, 2, False, e, jnp.int32(0)), source, KEY, episode


def scored(name: str) -> tuple[Any, ...]:
    model, scenarios, _, policy = played(name)
    return lambda policy, u: _returns(model, policy, 0.9, u), policy, scenarios


def learning() -> tuple[Any, ...]:
    _, _, episodes, policy = played("sokoban")
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(1e-3))
    state = optimizer.init(eqx.filter(policy, eqx.is_inexact_array))
    loss = ActorCriticLoss(discount=0.97)
    return lambda p, s, e: improve(loss, optimizer, p, s, e, jnp.float32(0)), policy, state, episodes


def imitating() -> tuple[Any, ...]:
    imitation = Imitation(sokoban(), lambda _: solved()[1], optax.adam(1e-3), batch=2)
    return imitation._improve, imitation.init(network()), *solved()


def modeling() -> tuple[Any, ...]:
    model, scenarios, _, _ = played("sokoban")
    training = ScenarioTraining(model, UniformPolicy(5), optax.adam(1e-3), batch=2)
    return lambda s, u: training._improve(KEY, s, u, None), training.init(draw()), scenarios


def searching(name: str, source: Any, objective: Any, what: str) -> tuple[Any, ...]:
    model, scenarios, episodes, policy = played(name)
    planner = None
    if name == "sokoban":
        scenarios, experts = solved()
        planner = prepared(ExpertSchedule(lambda _: experts, 0.5, 10.0), scenarios)
    if name == "linear observed":
        policy = LinearGaussianPolicy.zero(2, 1)
    search = PolicySearch(model, model, source, optax.adam(1e-3), planner, objective, num_episodes=2)
    state = search.init(policy)
    if what == "collect":
        return search.collect, KEY, state
    return (search.infer, KEY, state, episodes) if what == "infer" else (search.improve, KEY, state, scenarios)


def fitting(regression: Any, timed: bool, program: Callable[..., Any] = fit_values) -> tuple[Any, ...]:
    n, horizon, actions = 4, 3, 2
    cells = isinstance(regression, TableQ)
    inputs = jnp.zeros((n, horizon + 1), jnp.int32) if cells else jnp.ones((n, horizon + 1, 2))
    flags, numbers = jnp.ones((n, horizon), bool), jnp.ones((n, horizon))
    says = jnp.full((n, horizon + 1, actions), 0.5)
    chosen = jnp.zeros((n, horizon), jnp.int32)
    steps = Steps(inputs, chosen, numbers, flags, flags, flags, says, taken=None, timed=timed, discount=0.9)
    return program, regression, steps


def amortized() -> Amortized:
    model = played("tiger")[0]
    pairs = simulate_pairs(KEY, model, 8)
    return Amortized(model, first_network(KEY, Codings.of(model), pairs, 4, 2, rewards=True))


def asking(engine: str, evidence: dict[str, Any], scm: Any) -> tuple[Any, ...]:
    ask = lambda key, seen: _answer(key, scm, seen, do(X=2.0), scm.order, engine, 4, frozenset())
    return ask, KEY, evidence


WEIGHTED = ReturnWeightedRegression(num_rollouts=2, num_resampled=2)
PROGRAMS: dict[str, Callable[[], tuple[Any, ...]]] = {
    "IMPALA's learner": learning,
    "FQE with features": lambda: (*fitting(LinearQ(), False), jnp.ones(4)),
    # The rest is slow.
    "source Exact": lambda: inferring(Exact(played("tiger")[0]), "tiger"),
    "acting in tiger": lambda: acting("tiger"),
    "acting in sepsis": lambda: acting("sepsis gumbel_max"),
    "acting in a linear system": lambda: acting("linear hidden"),
    "acting in PO-Sokoban": lambda: acting("sokoban"),
    "scoring in tiger": lambda: scored("tiger"),
    "probabilities over a log": lambda: (
        lambda p, e: jax.vmap(lambda one: taken_log_probs(p, one))(e),
        network(),
        played("sokoban")[2],
    ),
    "imitation": imitating,
    "the scenario model's training": modeling,
    "CF-GPS collect": lambda: searching("sokoban", Learned(sokoban(), draw()), WEIGHTED, "collect"),
    "CF-GPS infer": lambda: searching("sokoban", Learned(sokoban(), draw()), WEIGHTED, "infer"),
    "CF-GPS improve": lambda: searching("sokoban", Learned(sokoban(), draw()), WEIGHTED, "improve"),
    "SVG improve": lambda: searching(
        "linear observed", ObservedStates(played("linear observed")[0]), ValueGradient(), "improve"
    ),
    "source Prior": lambda: inferring(Prior(played("tiger")[0]), "tiger"),
    "source Exact, Gaussian": lambda: inferring(Exact(played("linear hidden")[0]), "linear hidden"),
    "source ObservedStates": lambda: inferring(ObservedStates(played("linear observed")[0]), "linear observed"),
    "source Particles": lambda: inferring(Particles(played("tiger")[0], particles=8, moves=2), "tiger"),
    "source Particles, Gaussian": lambda: inferring(
        Particles(played("linear hidden")[0], particles=8, moves=2), "linear hidden"
    ),
    "source Tempered": lambda: inferring(Tempered(played("tiger")[0], particles=8, moves=2), "tiger"),
    "source Nuts": lambda: inferring(
        Nuts(played("linear hidden")[0], chains=2, warmup=20, draws=10, particles=8), "linear hidden"
    ),
    "source Learned": lambda: inferring(Learned(sokoban(), draw()), "sokoban"),
    "source Amortized": lambda: inferring(amortized(), "tiger"),
    "source Corrected": lambda: inferring(Corrected(amortized(), played("tiger")[0], particles=8, moves=2), "tiger"),
    "FQE with a table": lambda: (*fitting(TableQ(3), False), jnp.ones(4)),
    "FQE where ends depend on time": lambda: (*fitting(TableQ(3), True), jnp.ones(4)),
    "FQE with squares": lambda: (*fitting(QuadraticQ(), False), jnp.ones(4)),
    "FQE with random features": lambda: (*fitting(RandomFeaturesQ(), False), jnp.ones(4)),
    "FQE with a network": lambda: (*fitting(NetworkQ(), False), jnp.ones(4)),
    "FQE's bootstrap": lambda: (lambda q, s: _refits(KEY, 2, q, s), *fitting(TableQ(3), False)[1:]),
    "FQE's unseen actions": lambda: fitting(TableQ(3), False, _unseen),
    "a counterfactual, exact": lambda: asking("inversion", {name: jnp.ones(2) for name in "XHY"}, zoo.chain().scm),
    "a counterfactual, weighted": lambda: asking("importance", {"Y": jnp.ones(2)}, zoo.chain().scm),
}
FAST = 2


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if i < FAST else pytest.mark.slow) for i, name in enumerate(PROGRAMS)]
)
def test_nothing_of_a_program_belongs_to_the_cpu(name):
    program = traced(*PROGRAMS[name]())
    for platform in PLATFORMS:
        assert foreign(program, platform) == set(), platform


def test_a_call_to_the_host_is_found():
    model = tiger(horizon=3, reparameterization="gumbel_max")
    outside = as_policy(lambda observations: np.full((len(observations), 3), 1 / 3), model.action_space)
    act = lambda keys: batched(lambda key: rollout(model, outside, model.scenario_prior.sample(key)), keys)
    program = traced(act, jax.random.split(KEY, 8))
    for platform in PLATFORMS:
        assert foreign(program, platform) == {"pure_callback"}


def test_lapack_is_found_where_a_cpu_would_use_it():
    symmetric = traced(lambda x: jnp.linalg.eigvalsh(x), jnp.eye(3))
    assert any("lapack" in name for name in foreign(symmetric, "cpu"))
    assert not foreign(symmetric, "cuda")


def test_operations_are_counted_as_by_hand():
    """Convolutions of a conv-LSTM of one layer, those of the heads, and its two products, in each of three steps."""
    policy, steps = network(), 3
    seen = jax.ShapeDtypeStruct((steps, 7, 7), jnp.uint8)

    def unroll(policy, observations):
        step = lambda carry, observation: (lambda c, d, v: (c, (d.logits, v)))(*policy.with_value(carry, observation))
        return jax.lax.scan(step, policy.initial_carry(), observations)[1]

    channels, cells, units, tiles, actions = 4, 25, 8, 7, 5
    convolutions = 2 * cells * 9 * (tiles + channels) * 4 * channels
    found = accelerators.counted(unroll, policy, seen)
    by_hand = steps * convolutions
    assert by_hand <= found["operations"] <= by_hand + steps * 2 * 2 * units * (2 * cells * channels + actions + 1)
    assert found["sequential steps"] % steps == 0

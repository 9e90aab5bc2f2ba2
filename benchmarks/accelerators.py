"""What `--preset paper` takes on GPUs and TPUs, counted and not measured: operations, memory, sequential steps, hours.

Programs are traced at the paper's sizes, and the products and convolutions in them are counted, those in a loop as
often as it runs. Nothing is computed. Hours are the larger of two: operations at `UTILIZATION` of the peak, and the
steps that wait for each other at `LATENCY` each, which is what small batches take.
"""

import math
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import equinox as eqx
import jax
import jax.numpy as jnp
import optax

from benchmarks.harness import sized
from coulda.environments.sokoban import Sokoban, UniformLevels
from coulda.experiments.reproduction import evaluation_preset, ingredients, search_preset
from coulda.hindsight import Learned
from coulda.learners.impala import improve
from coulda.pomdp import GumbelMaxChoice, rollout
from coulda.recipes.impala import ImpalaRecipe
from coulda.search import PolicySearch, ReturnWeightedRegression

PEAK = 156e12
"""Operations a second of an A100 in TF32, its vendor's number; a TPU v4 has 275e12 in bfloat16."""
UTILIZATION = 0.1
"""Assumed: convolutions of 32 channels on 8×8 cells use little of a large chip."""
LATENCY = 30e-6
"""Seconds of a convolution and its gates that wait for those before them, assumed: a few kernels of microseconds."""
PRESET = sized("paper", "smoke")
DEVICES = (1, 8)


def main() -> dict[str, Any]:
    """Counts of an update of each kind, and hours of each experiment."""
    sizes = ingredients(PRESET)
    evaluation, search = evaluation_preset(sizes, PRESET), search_preset(sizes, PRESET)
    assert isinstance(sizes.policy, ImpalaRecipe) or PRESET == "smoke"
    # Gradients are taken in chunks on CPUs only.
    with mock.patch.object(jax, "default_backend", return_value="gpu"):
        counts = {
            name: counted(*program)
            for name, program in {
                "an update of the policy (IMPALA)": learning(sizes),
                "an update of the scenario model": modeling(sizes),
                "an update of CF-GPS": searching(search),
                "a batch of CF-PE: 1,000 episodes, one policy, one t": evaluating(sizes, 1000),
            }.items()
        }
    updates = list(counts.values())
    policy, models = sizes.policy.updates, sizes.scenarios.updates * len(evaluation.parts_of_t)
    scored = len(evaluation.parts_of_t) * 3 * sizes.logged / 1000
    runs = len(search.settings) * search.seeds
    experiments = {
        "policy": [(policy, updates[0], 1)],
        "scenario models, one for each t": [(models, updates[1], len(evaluation.parts_of_t))],
        "CF-PE of all t": [(scored, updates[3], DEVICES[-1])],
        "policy search, all curves": [(search.updates * runs, updates[2], runs)],
    }
    hours = {
        f"{devices} accelerators": {
            name: round(sum(hours_of(n, update, runs, devices) for n, update, runs in parts), 1)
            for name, parts in experiments.items()
        }
        for devices in DEVICES
    }
    assumed = {"operations a second": PEAK, "utilization": UTILIZATION, "seconds a sequential step": LATENCY}
    return {"counts": counts, "hours": hours, "assumed": assumed}


def hours_of(times: float, count: dict[str, float], runs: int, devices: int) -> float:
    """Of so many updates, which are those of `runs` independent runs: one device works on a run at a time.

    A run's batch may be split as well, but what waits for each other does not become less by it.
    """
    seconds = max(count["operations"] / (PEAK * UTILIZATION), count["sequential steps"] * LATENCY)
    return times * seconds / 3600 / min(devices, runs)


def world(sizes: Any) -> Sokoban:
    """PO-Sokoban without a search for levels: shapes are all that counts."""
    told = sizes.sokoban
    return Sokoban(
        levels=UniformLevels(jnp.zeros((1, told.side, told.side), jnp.uint8)),
        action_mechanism=GumbelMaxChoice(5),
        height=told.side,
        width=told.side,
        num_boxes=told.boxes,
        horizon=told.horizon,
        mask_probability=told.mask,
    )


def played(sizes: Any, policy: Any, count: int) -> tuple[Any, Any]:
    """Shapes of scenarios and episodes."""
    model = world(sizes)

    def play() -> tuple[Any, Any]:
        scenarios = jax.vmap(model.scenario_prior.sample)(jax.random.split(jax.random.key(0), count))
        return scenarios, jax.vmap(lambda u: rollout(model, policy, u).episode)(scenarios)

    return eqx.filter_eval_shape(play)


def learning(sizes: Any) -> tuple[Any, ...]:
    recipe, key = sizes.policy, jax.random.key(0)
    policy, batch = recipe.network.first_policy(key, sizes.sokoban), recipe.batch
    model, optimizer = world(sizes), optax.adam(1e-3)
    state, loss = optimizer.init(eqx.filter(policy, eqx.is_inexact_array)), ImpalaRecipe().loss

    def update(policy: Any, state: Any, keys: Any) -> Any:
        act = lambda key: rollout(model, policy, model.scenario_prior.sample(key)).episode
        return improve(loss, optimizer, policy, state, jax.vmap(act)(keys), jnp.float32(0))

    return update, policy, state, jax.random.split(key, batch)


def modeling(sizes: Any) -> tuple[Any, ...]:
    recipe, key = sizes.scenarios, jax.random.key(0)
    training = recipe.training(world(sizes), sizes.sokoban)
    network = recipe.network.first_model(key)
    scenarios, _ = played(sizes, training.behavior, recipe.batch)
    return lambda state, u: training._improve(key, state, u, None), training.init(network), scenarios


def searching(preset: Any) -> tuple[Any, ...]:
    sizes, key = preset.ingredients, jax.random.key(0)
    source = Learned(world(sizes), sizes.scenarios.network.first_model(key))
    objective = ReturnWeightedRegression(preset.num_rollouts, 1.0, "scenario", True, preset.num_resampled)
    # The solver's tables are looked up, which costs nothing: the policy stands in for the planner.
    model, episodes = world(sizes), preset.num_episodes
    search = PolicySearch(model, model, source, optax.adam(1e-3), None, objective, episodes)

    def update(state: Any) -> Any:
        _, logged = search.collect(key, state)
        return search.improve(key, state, search.infer(key, state, logged))

    return update, search.init(preset.first_policy(0))


def evaluating(sizes: Any, count: int) -> tuple[Any, ...]:
    key = jax.random.key(0)
    policy = sizes.policy.network.first_policy(key, sizes.sokoban)
    source, model = Learned(world(sizes), sizes.scenarios.network.first_model(key)), world(sizes)
    _, episodes = played(sizes, policy, count)

    def one(key: Any, episode: Any) -> Any:
        return rollout(model, policy, source.infer(key, episode)).episode_return

    return jax.vmap(one), jax.random.split(key, count), episodes


def counted(program: Callable[..., Any], *arguments: Any) -> dict[str, float]:
    """Operations, what is kept for the backward pass in megabytes, and convolutions that wait for each other."""
    arrays, other = eqx.partition(arguments, lambda x: eqx.is_array(x) or isinstance(x, jax.ShapeDtypeStruct))
    run = lambda arrays: eqx.filter(program(*eqx.combine(arrays, other)), eqx.is_array)
    jaxpr = jax.make_jaxpr(run)(arrays).jaxpr
    kept = max((size for size, _ in _loops(jaxpr, 1)), default=0)
    return {
        "operations": sum(operations for operations, _ in _work(jaxpr, 1)),
        "sequential steps": sum(times for _, times in _work(jaxpr, 1)),
        "megabytes of the largest loop": round(kept / 1e6, 1),
    }


def _work(jaxpr: Any, times: int) -> Iterator[tuple[float, int]]:
    """Operations of every product and convolution, all its runs together, and how often it runs."""
    for equation in jaxpr.eqns:
        name, shapes = equation.primitive.name, [var.aval.shape for var in equation.invars]
        made = math.prod(equation.outvars[0].aval.shape) if equation.outvars else 0
        if name == "coulda_convolve":
            yield 2.0 * times * made * math.prod(shapes[1][:3]), times
        elif name == "coulda_kernel_gradient":
            yield 2.0 * times * made * math.prod(shapes[0][:-1]), times
        elif name == "dot_general":
            over = equation.params["dimension_numbers"][0][0]
            yield 2.0 * times * made * math.prod(shapes[0][axis] for axis in over), times
    for inner, runs in _inner(jaxpr):
        yield from _work(inner, times * runs)


def _loops(jaxpr: Any, times: int) -> Iterator[tuple[int, int]]:
    """Bytes that each loop stacks up, step by step."""
    for equation in jaxpr.eqns:
        if equation.primitive.name == "scan":
            stacked = equation.outvars[equation.params["num_carry"] :]
            yield times * sum(var.aval.size * var.aval.dtype.itemsize for var in stacked), times
    for inner, runs in _inner(jaxpr):
        yield from _loops(inner, times * runs)


def _inner(jaxpr: Any) -> Iterator[tuple[Any, int]]:
    """Programs within a program, and how often each runs."""
    for equation in jaxpr.eqns:
        runs = equation.params["length"] if equation.primitive.name == "scan" else 1
        for value in equation.params.values():
            for part in value if isinstance(value, tuple | list) else (value,):
                inner = getattr(part, "jaxpr", part)
                if hasattr(inner, "eqns"):
                    yield inner, runs

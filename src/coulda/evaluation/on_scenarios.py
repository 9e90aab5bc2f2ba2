"""Evaluation on scenarios: MB-PE, and CF-PE(t) (Algorithm 1), which differ in where the scenarios come from.

For each logged episode, scenarios u ~ p(U | h_t) are drawn and the policies are run on them: with `Prior` this is
MB-PE, with a source that infers it is CF-PE(t). All policies are run on the same scenarios, so that their differences
are paired.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from coulda.evaluation.diagnostics import log_diagnostics
from coulda.evaluation.estimate import Diagnostic, Estimate
from coulda.evaluation.history import Log, batch_sizes, filled_batch, filled_batches, generator, run, to_numpy
from coulda.evaluation.intervals import Ratios, interval, student
from coulda.evaluation.model_checks import (
    Replay,
    Shift,
    Shifts,
    malformed_diagnostic,
    missing_end,
    replay,
    replay_diagnostic,
    shift,
)
from coulda.executors import Executor, Work, gather
from coulda.hindsight import Prior, ScenarioSource
from coulda.hindsight.source import fresh
from coulda.pomdp import POMDP, Episode, Policy, Scenario, batched, rollout
from coulda.progress import Advance


def evaluate(
    key: Array,
    model: POMDP,
    policy: Policy,
    episodes: Log,
    scenarios: ScenarioSource | None = None,
    **options: Any,
) -> Estimate:
    """The expected return of `policy` in `model`, on scenarios drawn for each logged episode.

    Args:
        key: consumed; the same key draws the same scenarios for any policy.
        model: the SCM we believe in.
        policy: the target π.
        episodes: the log. MB-PE takes from it the number of scenarios only.
        scenarios: the source, such as `hindsight.given(steps=50)`; `Prior(model)`, which is MB-PE, by default.
        **options: of `evaluate_policies`.
    """
    return evaluate_policies(key, model, {"policy": policy}, episodes, scenarios, **options)["policy"]


def evaluate_policies(
    key: Array,
    model: POMDP,
    policies: Mapping[str, Policy],
    episodes: Log,
    scenarios: ScenarioSource | None = None,
    *,
    num_scenarios: int = 1,
    level: float = 0.95,
    interval_kind: str = "student",
    bounds: tuple[float, float] | None = None,
    malformed: Callable[[Scenario], Array] | None = None,
    advance: Advance | None = None,
) -> dict[str, Estimate]:
    """`evaluate` for several policies on the same scenarios.

    Args:
        key: consumed.
        model: the SCM we believe in.
        policies: by name.
        episodes: the log.
        scenarios: the source.
        num_scenarios: an episode; their mean is the episode's term, so that the spread of terms covers both the
            sampling of episodes and that of scenarios.
        level: of the intervals.
        interval_kind: "student", "bca" or, with `bounds` of the return, "bernstein".
        bounds: the least and the largest possible return.
        malformed: tells of a scenario whether the real world could not have made it, such as a level without an agent.
            Such scenarios are scored as they fall, never repaired; their share is reported.
        advance: told how many episodes more are done.
    """
    source = Prior(model) if scenarios is None else scenarios
    options = {"level": level, "interval_kind": interval_kind, "bounds": bounds, "malformed": malformed}
    options |= {"num_scenarios": num_scenarios, "advance": advance}
    return evaluate_sources(key, model, policies, episodes, [source], **options)[0]


class Chunk(eqx.Module):
    """What came of one piece of the log under one source; `[n, ...]` in each array."""

    returns: dict[str, Array]
    """By policy, `[n, M]`."""
    replay: Replay
    shift: Shift
    malformed: Array


def evaluate_sources(
    key: Array,
    model: POMDP,
    policies: Mapping[str, Policy],
    episodes: Log,
    sources: Sequence[ScenarioSource],
    *,
    num_scenarios: int = 1,
    level: float = 0.95,
    interval_kind: str = "student",
    bounds: tuple[float, float] | None = None,
    malformed: Callable[[Scenario], Array] | None = None,
    executor: Executor | None = None,
    advance: Advance | None = None,
) -> list[dict[str, Estimate]]:
    """`evaluate_policies` for several sources, in one pass over the log.

    With an executor the pieces of the log are worked on wherever it says, to the same bits. Its work is a `chunk_work`
    of the same model, policies, log and sources. `advance` is told how many episodes more are done.
    """
    key_scenarios, key_interval = jax.random.split(key)
    if executor is None:
        function = _chunks_of(model, policies, episodes, sources, num_scenarios, malformed)
        pieces = ((function(key_scenarios, inputs), count) for inputs, count in filled_batches(episodes, model.horizon))
    else:
        executor.publish(0, key_scenarios)
        counts = batch_sizes(episodes)
        pieces = ((batch.value, counts[batch.index]) for batch in gather(executor, range(len(counts))))

    def finished() -> Iterator[list[Chunk]]:
        for piece, count in pieces:
            yield [to_numpy(chunk, count) for chunk in piece]
            if advance is not None:
                advance(count)

    chunks = zip(*finished(), strict=True)
    estimate = partial(_summary, model, episodes, malformed is not None, key_interval, level, interval_kind, bounds)
    return [estimate(source, list(parts)) for source, parts in zip(sources, chunks, strict=True)]


def chunk_work(
    model: POMDP,
    policies: Mapping[str, Policy],
    episodes: Log,
    sources: Sequence[ScenarioSource],
    num_scenarios: int = 1,
    malformed: Callable[[Scenario], Array] | None = None,
) -> Work:
    """The work of `evaluate_sources` for an executor: batch i is the i-th piece of the log, its parameters the key."""
    run_chunk = _chunks_of(model, policies, episodes, sources, num_scenarios, malformed)
    inputs = lambda index: filled_batch(episodes, model.horizon, index)
    return Work(jax.eval_shape(lambda: jax.random.key(0)), inputs, run_chunk, jit=False)


def _chunks_of(
    model: POMDP,
    policies: Mapping[str, Policy],
    episodes: Log,
    sources: Sequence[ScenarioSource],
    num_scenarios: int,
    malformed: Callable[[Scenario], Array] | None,
) -> Callable[[Array, Any], list[Chunk]]:
    repeated = episodes.schema.last_observation == "repeated"

    def one(source: ScenarioSource, key: Array, inputs: Any) -> Chunk:
        # Programs of their own, so that inference is compiled once and not for each set of policies.
        infer = eqx.Partial(_infer, model, source, key, num_scenarios, repeated, malformed)
        drawn, replayed, shifted, bad = run(infer, inputs)
        scored = {name: run(eqx.Partial(_returns, model, policy), (drawn,)) for name, policy in policies.items()}
        return Chunk(scored, replayed, shifted, bad)

    return lambda key, inputs: [one(source, key, inputs) for source in sources]


def _summary(
    model: POMDP,
    episodes: Log,
    tell_malformed: bool,
    key: Array,
    level: float,
    interval_kind: str,
    bounds: tuple[float, float] | None,
    source: ScenarioSource,
    chunks: list[Chunk],
) -> dict[str, Estimate]:
    """Estimates by policy from all pieces of the log."""
    shifts = Shifts()
    for chunk in chunks:
        shifts.add(chunk.shift)
    whole = jax.tree.map(lambda *parts: np.concatenate(parts), *chunks)
    shared = (*replay_diagnostic(source, whole.replay), *missing_end(source, episodes), *log_diagnostics(episodes))
    # Evidence that stops short of the end is chosen by how the episode ended: its average is not the prior.
    repeated = episodes.schema.last_observation == "repeated"
    shared = shared if repeated else (*shifts.diagnostic(), *shared)
    shared = (malformed_diagnostic(float(whole.malformed.mean())), *shared) if tell_malformed else shared
    method = method_name(source, model)
    return {
        name: _estimate(method, returns, shared, key, level, interval_kind, bounds)
        for name, returns in whole.returns.items()
    }


def on_policy(key: Array, environment: POMDP, policy: Policy, num_episodes: int, level: float = 0.95) -> Estimate:
    """Monte Carlo in the environment itself: the truth, up to sampling, where one may run the policy."""
    returns = np.asarray(_run(environment, policy, jax.random.split(key, num_episodes)), float)
    return Estimate("on-policy", float(returns.mean()), student(returns, level), returns, float(num_episodes))


@eqx.filter_jit
def _run(environment: POMDP, policy: Policy, keys: Array) -> Array:
    return batched(
        lambda key: rollout(environment, policy, environment.scenario_prior.sample(key)).episode_return, keys
    )


def method_name(source: ScenarioSource, model: POMDP) -> str:
    """MB-PE or CF-PE(t); t = T + 1 is the whole episode, the observation after the last action included."""
    if isinstance(source, Prior) or int(source.steps) == 0:
        return "MB-PE"
    return f"CF-PE({min(int(source.steps), model.horizon + 1)})"


def _infer(
    model: POMDP,
    source: ScenarioSource,
    key: Array,
    num_scenarios: int,
    repeated: bool,
    malformed: Callable[[Scenario], Array] | None,
    episode: Episode,
    index: Array,
) -> tuple[Scenario, Replay, Shift, Array]:
    """Scenarios `[M, ...]` of one episode, how they replay the log, how far from the prior they are, which are bad."""
    source = informed(source, repeated, episode)

    def one(key: Array) -> tuple[Scenario, Replay, Shift]:
        scenario = source.infer(key, episode)
        replayed = replay(model, scenario, episode, source.steps, exactly=source.infers_observation_noise)
        return scenario, replayed, shift(model, scenario, fresh(key, model), episode)

    scenarios, replays, shifts = jax.vmap(one)(jax.random.split(jax.random.fold_in(key, index), num_scenarios))
    bad = jnp.zeros(num_scenarios, bool) if malformed is None else jax.vmap(malformed)(scenarios)
    return scenarios, replays, jax.tree.map(lambda leaf: jnp.mean(leaf, axis=0), shifts), bad


def informed(source: ScenarioSource, repeated: bool, episode: Episode) -> ScenarioSource:
    """The source without the observation after the last action, where a repeated one stands in its place."""
    if not repeated or isinstance(source, Prior):
        return source
    return source.given(jnp.minimum(source.steps, episode.length))


def _returns(model: POMDP, policy: Policy, scenarios: Scenario) -> Array:
    """G on each of the scenarios, `[M]`."""
    return jax.vmap(lambda scenario: rollout(model, policy, scenario).episode_return)(scenarios)


def _estimate(
    method: str,
    returns: np.ndarray,
    shared: tuple[Diagnostic, ...],
    key: Array,
    level: float,
    kind: str,
    bounds: tuple[float, float] | None,
) -> Estimate:
    """From returns `[N, M]` of one policy: an episode's term is the mean over its scenarios."""
    returns = returns.astype(float)
    terms = returns.mean(1)
    ratios = Ratios.mean_of(terms)
    details = {"scenarios an episode": returns.shape[1]}
    if returns.shape[1] > 1:
        within = float(returns.var(1, ddof=1).mean())
        between = max(float(terms.var(ddof=1)) - within / returns.shape[1], 0.0)
        details |= {"variance between episodes": between, "variance within an episode": within}
    found = interval(generator(key), ratios, level, kind, bounds)
    return Estimate(method, ratios.value, found, terms, float(len(terms)), diagnostics=shared, details=details)

"""A case of the study of trust: a world, who acted in it, how that was logged, the question, and what is believed.

`make_log` and `truth_of` belong to both generators of cases, `trust_tuning` and `trust_held_out`.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from coulda.environments.linear_gaussian import LinearQuadratic
from coulda.environments.tabular import TabularPOMDP
from coulda.episodes import EpisodeLog, collect, fit_behavior
from coulda.episodes.log import spans
from coulda.hindsight import Exact, ObservedStates, ScenarioSource
from coulda.policies import TabularPolicy
from coulda.pomdp import POMDP, Policy, batched, rollout
from coulda.pomdp.observed import ObservedPOMDP

STATES = 8
"""Smaller tables are filled up with states that are never reached, so that programs are shared."""
CHUNK = 50_000
"""Episodes of a truth that are run at once."""
NOISES: dict[str, Callable[[np.random.Generator, int], np.ndarray]] = {
    "plain": lambda rng, n: np.zeros(n),  # noqa: ARG005
    "normal": lambda rng, n: rng.standard_normal(n),
    "student": lambda rng, n: rng.standard_t(3, n),
    # One step in 250 pays 250, the others -1: the mean is 0.
    "rare": lambda rng, n: np.where(rng.random(n) < 1 / 250, 249.0, -1.0) / np.sqrt(249),
}
"""What rewards are blurred with; the mean is 0 and does not move the truth."""


@dataclass(frozen=True)
class Case:
    """One question with a known answer. The fields that are words and whole numbers are its kind."""

    family: str
    environment: POMDP
    behavior: Policy
    acts: Literal["uniform", "memoryless", "memory"]
    target: Policy
    support: Literal["near", "middle", "far"]
    episodes: int
    ends: Literal["fixed", "state", "clock", "state and clock", "cut off"]
    """By the horizon alone, also by a state, also by a clock that nobody influences, or cut off by the log."""
    survival: np.ndarray
    """P(the clock has not run out before step t), `[T]`, from 1."""
    flags: Literal["honest", "absent", "truncated"]
    """As a table says it: which episodes came to their own end; no flags at all; or all of them truncated."""
    last_observation: Literal["logged", "repeated"]
    rewards: Literal["plain", "normal", "student", "rare", "jackpot"]
    """What they are blurred with; a jackpot is a rare and large one of the world itself."""
    blur: float
    probabilities: Literal["given", "fitted"]
    model: POMDP | None
    belief: str
    """What is wrong with the model: "right", or such as "transition 30%"; "none" where there is none."""
    hindsight: bool
    """Whether scenarios are inferred from the log too, for CF-PE."""

    @property
    def kind(self) -> dict[str, Any]:
        """What the case is, in plain values."""
        values = {field.name: getattr(self, field.name) for field in fields(self)} | {"horizon": self.horizon}
        return {name: value for name, value in values.items() if isinstance(value, str | int | bool)}

    @property
    def horizon(self) -> int:
        """T."""
        return self.environment.horizon

    @property
    def source(self) -> ScenarioSource | None:
        """Where scenarios come from in hindsight."""
        if not self.hindsight or self.model is None:
            return None
        if isinstance(self.model, TabularPOMDP | LinearQuadratic):
            return Exact(self.model)
        return ObservedStates(self.model) if isinstance(self.model, ObservedPOMDP) else None


def make_log(key: Array, case: Case) -> EpisodeLog:
    """The log of a case, as a table would hold it. Consumes `key`."""
    rng = np.random.default_rng(np.asarray(jax.random.key_data(jax.random.fold_in(key, 1))))
    log = collect(key, case.environment, case.behavior, case.episodes)
    log = cut_by_clock(log, (case.survival > rng.random((len(log), 1))).sum(1), own_end=case.ends != "cut off")
    blurred = log.reward + case.blur * NOISES.get(case.rewards, NOISES["plain"])(rng, log.num_steps)
    log = replace(log, reward=blurred.astype(np.float32))
    if case.flags != "honest":
        log = replace(log, terminated=np.full(len(log), case.flags == "absent"))
    if case.last_observation == "repeated":
        log = without_last_observation(log)
    return fit_behavior(log) if case.probabilities == "fitted" else log


def cut_by_clock(log: EpisodeLog, lengths: np.ndarray, *, own_end: bool) -> EpisodeLog:
    """The log in which episodes have at most so many steps; whether those that lose some came to their own end."""
    kept = np.minimum(log.lengths, lengths)
    steps, observed = spans(log.starts, kept), spans(log.starts + np.arange(len(log)), kept + 1)
    cut = kept < log.lengths
    return EpisodeLog(
        log.schema,
        log.observation[observed],
        log.action[steps],
        log.reward[steps],
        log.log_prob[steps],
        kept.astype(np.int32),
        np.where(cut, own_end, log.terminated),
    )


def without_last_observation(log: EpisodeLog) -> EpisodeLog:
    """The log in which the observation before the last action stands for the one after it."""
    observation, last = log.observation.copy(), np.cumsum(log.lengths + 1) - 1
    observation[last] = observation[last - 1]
    return replace(log, observation=observation, schema=replace(log.schema, last_observation="repeated"))


def truth_of(key: Array, case: Case) -> tuple[float, float]:
    """E[G] of the target with the ends of the world, and its standard error: 0 where it is exact. Consumes `key`.

    What the log cut off would have been paid. Elsewhere a clock that runs out is a part of the world; it is
    independent of all else, so that step t counts with the probability that it is reached.
    """
    counts = np.ones(case.horizon) if case.ends == "cut off" else case.survival
    if isinstance(case.environment, TabularPOMDP) and isinstance(case.target, TabularPolicy):
        return float(counts @ exact_rewards(case.environment, np.exp(np.asarray(case.target.logits, float)))), 0.0
    # Answers may have half the variance of as many returns: a tenth of their standard error takes 200 times the log.
    chunks = max(4, -(-200 * case.episodes // CHUNK))
    found = [
        np.asarray(_weighted_returns(case.environment, case.target, jnp.asarray(counts, float), part), float)
        for part in jax.random.split(key, (chunks, CHUNK))
    ]
    returns = np.concatenate(found)
    return float(returns.mean()), float(returns.std(ddof=1) / np.sqrt(len(returns)))


def exact_rewards(world: TabularPOMDP, policy: np.ndarray) -> np.ndarray:
    """E[r_t] of a policy `[O, A]` without memory, `[T]`, by carrying the distribution of states forward."""
    transition, reward, terminal = (np.asarray(table, float) for table in world.tables())
    acts = np.exp(np.asarray(world.observation_logits[-1], float)) @ policy
    live = 1 - terminal
    reached, found = np.exp(np.asarray(world.initial_logits, float)) * live, []
    for _ in range(world.horizon):
        flow = np.einsum("s,sa,ast->ast", reached, acts, transition)
        found.append((flow * reward).sum())
        reached = flow.sum((0, 1)) * live
    return np.array(found)


@eqx.filter_jit
def _weighted_returns(environment: POMDP, policy: Policy, counts: Array, keys: Array) -> Array:
    """Σ_t counts_t r_t of an episode each key."""

    def one(key: Array) -> Array:
        return counts @ rollout(environment, policy, environment.scenario_prior.sample(key)).episode.reward

    return batched(one, keys)


@dataclass(frozen=True)
class Tables:
    """A finite world in numbers; see `TabularPOMDP` for their shapes."""

    initial: np.ndarray
    transition: np.ndarray
    observation: np.ndarray
    reward: np.ndarray
    """`[A, S, S]`."""
    terminal: np.ndarray

    def world(self, horizon: int, reparameterization: str) -> TabularPOMDP:
        """With `STATES` states and observations."""
        missing = STATES - len(self.initial)
        return TabularPOMDP(
            filled(self.initial, 0),
            filled(self.transition, 1, 2),
            filled(self.observation, 0, 1),
            np.pad(self.reward, [(0, 0), (0, missing), (0, missing)]),
            horizon=horizon,
            reparameterization=reparameterization,
            terminal=np.pad(self.terminal, (0, missing)),
        )


def filled(table: np.ndarray, *axes: int) -> np.ndarray:
    """The table with zeros up to `STATES` along the axes; rows that become empty go to the first column.

    >>> filled(np.ones((1, 1)), 0, 1).sum(1).tolist()
    [1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]
    """
    grown = np.pad(table, [(0, STATES - size if axis in axes else 0) for axis, size in enumerate(table.shape)])
    grown[..., 0] += grown.sum(-1) == 0
    return grown

"""`PolicySearch`: the procedure CF-GPS of Algorithm 1, and with other scenario sources MB-PS and GPS-like search."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Protocol

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jax import Array

from coulda.devices import on_all_devices, one_device
from coulda.episodes import StoredLog
from coulda.errors import CouldaError
from coulda.evaluation.model_checks import check_log_fits
from coulda.evaluation.reading import Log
from coulda.executors import Executor, Work, gather
from coulda.hindsight import ScenarioSource
from coulda.hindsight.choosing import chosen
from coulda.hindsight.source import informed
from coulda.planners.mixture import PlannerFor, PlanningProblem, prepared
from coulda.policies.host import HostPolicy
from coulda.pomdp import POMDP, Actor, BlackBoxPOMDP, Episode, Planner, Policy, Scenario, rollout
from coulda.pomdp.rollout import check_discount
from coulda.search.objective import ReturnWeightedRegression
from coulda.trainer import descend, first_state

Learn = Callable[[Array, ScenarioSource, Scenario, Episode], ScenarioSource]
"""(key, source, u, h) -> source: train the source on privileged pairs, `[N, ...]`: the true u of each logged h."""


class Logged(eqx.Module):
    """What was logged, in the place of an environment: each step of a search draws some of its episodes.

    Whoever acted, it was not the policy that is searched for, and it does not change.
    """

    episodes: Episode
    """`[N, T, ...]`."""
    repeated: bool = eqx.field(static=True)
    """Whether the observation after the last action is missing, and the one before it stands in its place."""

    @classmethod
    def of(cls, log: Log, model: POMDP) -> "Logged":
        """The whole log, in memory, if it can be one of the model's."""
        check_log_fits(model, log)
        whole = log.read() if isinstance(log, StoredLog) else log
        return cls(whole.padded(model.horizon), whole.schema.last_observation == "repeated")

    def draw(self, key: Array, num_episodes: int) -> Episode:
        """Episodes `[num_episodes, ...]`, uniformly with replacement. Consumes `key`."""
        drawn = jax.random.randint(key, (num_episodes,), 0, self.episodes.reward.shape[0])
        return jax.tree.map(lambda leaf: leaf[drawn], self.episodes)


class Objective(Protocol):
    """How trajectories improve the policy: `ReturnWeightedRegression` (equation 1) or `ValueGradient` (SVG)."""

    def ascent(
        self,
        key: Array,
        model: POMDP,
        policy: Policy,
        planner: Callable[[Array, Scenario], Actor],
        scenarios: Scenario,
        discount: float = 1.0,
    ) -> Callable[[Policy, Array], tuple[Policy, Any]]:
        """What is climbed in scenarios `[S, ...]`, planned once for π^k; `planner` is λ for a place and its scenario.

        A function of π and of a uniform number: the ascent direction there, and what a person wants to know of it.
        """
        ...


class SearchState(eqx.Module):
    """What the next step needs."""

    policy: Policy
    """π^k."""
    behavior: Policy
    """μ, an older copy of π."""
    source: ScenarioSource
    optimizer_state: Any
    updates: Array
    """k."""
    episodes: Array
    """Episodes of the environment seen so far."""


class SearchInfo(eqx.Module):
    """What a person wants to know of one step; scalars."""

    behavior_return: Array
    """Mean return of μ in the environment, or of the episodes drawn from the log."""
    staleness: Array
    """How many updates behind π the behavior policy was."""
    gradient_norm: Array
    objective: Any
    """What the objective tells: a `ReturnWeightedInfo`, for one."""


class PolicySearch(eqx.Module):
    """Search for a policy on counterfactual trajectories in scenarios inferred from logged episodes.

    The scenario source is the method: `Prior(model)` is MB-PS, any source `.given(1)` is GPS-like, and one that is
    given the whole episode is CF-GPS.

    Args:
        environment: the real world, in which the behavior policy μ collects episodes; or what was `Logged` there, from
            which episodes are drawn.
        model: the SCM we believe in, in which the planner acts. The environment is never asked for it.
        scenarios: p(U | h_t) over the model, or the name of a source; "auto" `choose`s one for the model. A source with
            a `behavior` is told who acted as μ changes.
        planner: λ: an actor, or a function that returns one for a `PlanningProblem`, such as `ExpertSchedule`; π^k
            itself by default.
        optimizer: the policy's, climbing: it is given the negated gradient, as optax expects.
        objective: `ReturnWeightedRegression(...)`, or `ValueGradient()`.
        num_episodes: N, logged per step; one scenario is inferred from each.
        refresh: μ becomes a copy of π every so many updates ("sometimes").
        discount: γ of the return that is climbed. A planner that looks ahead, such as `MCTS`, has one of its own.
        steps: steps of the optimizer an update, towards the argmax of equation 1 on one and the same trajectories, each
            on trajectories resampled anew.
        learn: trains the source online on privileged pairs (u, h); none by default.
        executor: whose `collection_work` collects the episodes; this process by default.
    """

    environment: POMDP | Logged
    model: POMDP
    scenarios: ScenarioSource | str
    optimizer: optax.GradientTransformation = eqx.field(static=True)
    planner: Actor | PlannerFor | None = None
    objective: Objective = eqx.field(default_factory=ReturnWeightedRegression)
    num_episodes: int = eqx.field(static=True, default=16)
    refresh: int = eqx.field(static=True, default=1)
    discount: float = eqx.field(static=True, default=1.0)
    steps: int = eqx.field(static=True, default=1)
    learn: Learn | None = None
    executor: Executor | None = eqx.field(static=True, default=None)

    def __check_init__(self):
        for name in ("num_episodes", "refresh", "steps"):
            if getattr(self, name) < 1:
                raise CouldaError(f"{name} must be at least 1; got {getattr(self, name)}.")
        check_discount(self.discount)
        for name in ("learn", "executor"):
            if isinstance(self.environment, Logged) and getattr(self, name) is not None:
                raise CouldaError(
                    f"{name} is given, but episodes come from a log; leave it out, or give an environment."
                )

    @property
    def calls_host(self) -> bool:
        """Whether anybody works outside of JAX."""
        return any(isinstance(one, BlackBoxPOMDP | HostPolicy) for one in (self.environment, self.model, self.planner))

    def init(self, policy: Policy) -> SearchState:
        """The state before the first step, μ being π^0. Nothing is drawn, so no key is taken."""
        if not jax.tree.leaves(eqx.filter(policy, eqx.is_inexact_array)):
            raise CouldaError(
                f"{type(policy).__name__} has no floating-point array, so there is nothing to train; make its "
                "parameters arrays, as in `threshold: Array = eqx.field(converter=jnp.asarray)`."
            )
        optimizer_state = first_state(self.optimizer, policy)
        source = chosen(self.model, self.scenarios).source
        first = SearchState(policy, policy, source, optimizer_state, jnp.int32(0), jnp.int32(0))
        with one_device(self.calls_host):
            return on_all_devices(first)

    def step(self, key: Array, state: SearchState) -> tuple[SearchState, SearchInfo]:
        """One iteration k of Algorithm 1: log episodes, infer scenarios, improve π. Consumes `key`."""
        key_collect, key_learn, key_infer, key_improve = jax.random.split(key, 4)
        state = self.refreshed(state)
        u, episodes = self.collect(key_collect, state)
        if self.learn is not None and u is not None:
            state = eqx.tree_at(lambda s: s.source, state, _learn(self.learn, key_learn, state.source, u, episodes))
        scenarios = self.infer(key_infer, state, episodes)
        search = replace(self, planner=prepared(self.planner, scenarios))
        state, gradient_norm, info = search.improve(key_improve, state, scenarios)
        staleness = (state.updates - 1) % self.refresh
        return state, SearchInfo(jnp.mean(episodes.discounted_return(self.discount)), staleness, gradient_norm, info)

    def refreshed(self, state: SearchState) -> SearchState:
        """The state with μ ← π^k, if it is time, and a source that knows who acts. Who acted in a log stays."""
        if isinstance(self.environment, Logged):
            return state
        due = state.updates % self.refresh == 0
        behavior = jax.tree.map(
            lambda new, old: jnp.where(due, new, old) if eqx.is_array(new) else new, state.policy, state.behavior
        )
        state = eqx.tree_at(lambda s: s.behavior, state, behavior)
        if getattr(state.source, "behavior", None) is None:
            return state
        return eqx.tree_at(lambda s: s.source.behavior, state, behavior)  # pyright: ignore[reportAttributeAccessIssue]

    def collect(self, key: Array, state: SearchState) -> tuple[Scenario | None, Episode]:
        """Episodes `[N, ...]` of μ in the environment, and the scenarios they truly had, for `learn` only.

        Of a log, some of its episodes; nobody knows their true scenarios.
        """
        if isinstance(self.environment, Logged):
            return None, self.environment.draw(key, self.num_episodes)
        if self.executor is None:
            return _collect(self.environment, state.behavior, jax.random.split(key, self.num_episodes))
        self.executor.publish(int(state.updates), (state.behavior, key))
        size = jax.tree.leaves(self.executor.work.value)[0].shape[0]
        batches = [batch.value for batch in gather(self.executor, range(self.num_episodes // size))]
        return jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *batches)

    def infer(self, key: Array, state: SearchState, episodes: Episode) -> Scenario:
        """One scenario for each logged episode, `[N, ...]`."""
        repeated = isinstance(self.environment, Logged) and self.environment.repeated
        return _infer(state.source, repeated, jax.random.split(key, episodes.reward.shape[0]), episodes)

    @eqx.filter_jit
    def improve(self, key: Array, state: SearchState, scenarios: Scenario) -> tuple[SearchState, Array, Any]:
        """π^{k+1} from scenarios `[N, ...]`; also the gradient's norm and the objective's info.

        A planner that searches on the host must have been `prepared` for these scenarios, as `step` does.
        """
        policy = state.policy
        planner = lambda number, u: self.planner_for(PlanningProblem(policy, u, number, state.episodes))
        key_plan, key_steps = jax.random.split(key)
        with one_device(self.calls_host):
            ascend = self.objective.ascent(key_plan, self.model, policy, planner, scenarios, self.discount)
            noise = jax.random.uniform(key_steps, (self.steps,))
            improved, optimizer_state, told = self._climbed(ascend, policy, state.optimizer_state, noise)
        count = jax.tree.leaves(scenarios)[0].shape[0]
        updated = SearchState(
            policy=improved,
            behavior=state.behavior,
            source=state.source,
            optimizer_state=optimizer_state,
            updates=state.updates + 1,
            episodes=state.episodes + count,
        )
        return updated, *told

    def _climbed(
        self, ascend: Callable[[Policy, Array], tuple[Policy, Any]], policy: Policy, optimizer_state: Any, noise: Array
    ) -> tuple[Policy, Any, tuple[Array, Any]]:
        """After a step of the optimizer for each of `noise [steps]`; what is told is told of the first."""
        arrays, other = eqx.partition(policy, eqx.is_array)

        def step(carry: Any, noise: Array) -> tuple[Any, Any]:
            policy = eqx.combine(carry[0], other)
            gradient, info = ascend(policy, noise)
            descent = jax.tree.map(jnp.negative, gradient)
            improved, optimizer_state = descend(self.optimizer, descent, carry[1], policy)
            return (eqx.filter(improved, eqx.is_array), optimizer_state), (optax.tree.norm(gradient), info)

        carry, first = step((arrays, optimizer_state), noise[0])
        if self.steps > 1:
            carry, _ = jax.lax.scan(step, carry, noise[1:])
        return eqx.combine(carry[0], other), carry[1], first

    def planner_for(self, problem: PlanningProblem) -> Actor:
        """λ in one scenario."""
        if self.planner is None:
            return problem.policy
        if isinstance(self.planner, Policy | Planner):
            return self.planner
        return self.planner(problem)


def collection_work(environment: POMDP, policy: Policy, num_episodes: int, batches: int = 1) -> Work:
    """What `PolicySearch.collect` has others do: batch i is the i-th of equal shares of a step's episodes.

    Args:
        environment: the real world.
        policy: any of the structure of μ.
        num_episodes: N of the search.
        batches: how many to collect at once, one per worker.
    """
    if num_episodes % batches:
        raise CouldaError(f"{num_episodes} episodes cannot be collected in {batches} equal batches; change one of them")

    def run(given: tuple[Policy, Array], index: Array) -> tuple[Scenario, Episode]:
        behavior, key = given
        keys = jax.random.split(key, num_episodes).reshape(batches, -1)
        return _collect(environment, behavior, keys[index])

    return Work(eqx.filter_eval_shape(lambda: (policy, jax.random.key(0))), jnp.int32, run, jit=False)


# Programs that depend on one part of a search are compiled for that part alone, and shared by searches that have it.


@eqx.filter_jit
def _collect(environment: POMDP, behavior: Policy, keys: Array) -> tuple[Scenario, Episode]:
    def one(key: Array) -> tuple[Scenario, Episode]:
        u = environment.scenario_prior.sample(key)
        return u, rollout(environment, behavior, u).episode

    return jax.vmap(one)(keys)


@eqx.filter_jit
def _infer(source: ScenarioSource, repeated: bool, keys: Array, episodes: Episode) -> Scenario:
    return jax.vmap(lambda key, episode: informed(source, repeated, episode).infer(key, episode))(keys, episodes)


@eqx.filter_jit
def _learn(learn: Learn, key: Array, source: ScenarioSource, u: Scenario, episodes: Episode) -> ScenarioSource:
    return learn(key, source, u, episodes)

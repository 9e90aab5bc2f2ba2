"""What planners of a search are made for, and λ = β λ_e + (1 - β) π: an expert, asked less and less (section 4.3)."""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array

from coulda.errors import CouldaError
from coulda.noise import Categorical
from coulda.pomdp import Actor, Planner, Policy, Scenario
from coulda.pomdp.actors import choose


class PlanningProblem(NamedTuple):
    """One scenario of a search, in which trajectories are to be planned."""

    policy: Policy
    """π^k."""
    scenario: Scenario
    number: Array
    """The scenario's place in its batch."""
    episodes: Array
    """How many episodes the search has seen so far, for schedules."""


PlannerFor = Callable[[PlanningProblem], Actor]
"""λ for one scenario. One that has a method `prepared` is first given all scenarios of a step, on the host."""

Experts = Callable[[Scenario], Callable[[Array], Planner]]
"""Scenarios `[N, ...]` -> the expert of the i-th of them. Runs on the host, once per step: it may search."""


def prepared(planner: Any, scenarios: Scenario) -> Any:
    """The planner, after its work on the host for scenarios `[N, ...]`, if it has any."""
    return planner.prepared(scenarios) if hasattr(planner, "prepared") else planner


class ExpertMixture(Planner):
    """β λ_e(a | s, h) + (1 - β) π(a | h): at each step the expert is asked with probability β, drawn anew.

    Its probabilities are the mixture's, exactly. Where the expert has no answer, which it says with logits that are
    all -inf, it is π alone. Discrete actions only: a mixture of Gaussians is no Gaussian.
    """

    expert: Actor
    policy: Policy
    beta: Array

    def initial_carry(self) -> tuple[Any, Any]:
        """The expert's and the policy's."""
        return self.expert.initial_carry(), self.policy.initial_carry()

    def __call__(self, carry: tuple[Any, Any], state: Any, observation: Any) -> tuple[tuple[Any, Any], Categorical]:
        """The weighted mean of the two."""
        expert_carry, advice = choose(self.expert, carry[0], state, observation)
        policy_carry, habit = self.policy(carry[1], observation)
        if not isinstance(advice, Categorical) or not isinstance(habit, Categorical):
            found = f"a {type(advice).__name__} and a {type(habit).__name__}"
            raise CouldaError(f"only discrete actions can be mixed; expert and policy gave {found}.")
        answered = jnp.isfinite(advice.logits).any()
        beta = jnp.where(answered, self.beta, 0.0)
        log_expert = jax.nn.log_softmax(jnp.where(answered, advice.logits, 0.0))
        log_policy = jax.nn.log_softmax(habit.logits)
        logits = jnp.logaddexp(jnp.log(beta) + log_expert, jnp.log1p(-beta) + log_policy)
        return (expert_carry, policy_carry), Categorical(logits=logits)

    def remember(self, carry: tuple[Any, Any], action: Any, reward: Array) -> tuple[Any, Any]:
        """Both remember."""
        return self.expert.remember(carry[0], action, reward), self.policy.remember(carry[1], action, reward)


class ExpertSchedule(eqx.Module):
    """The mixture with β = `beta` · exp(-episodes / `time_constant`) (paper: 10⁵ episodes).

    Args:
        expert: λ_e: a policy or a planner; or a function that searches on the host and gives each scenario of a batch
            an expert of its own, such as `partial(solver_planners, num_boxes=3)`.
        beta: at the first episode, a probability.
        time_constant: in episodes.
    """

    expert: Any
    beta: Array
    time_constant: Array

    def __init__(self, expert: Actor | Experts, beta: float | Array = 1.0, time_constant: float | Array = 1e5):
        if not 0 <= beta <= 1:
            raise CouldaError(f"beta is a probability, between 0 and 1; got {beta}.")
        if not time_constant > 0:
            raise CouldaError(f"time_constant is a number of episodes, more than 0; got {time_constant}.")
        self.expert = expert
        self.beta, self.time_constant = jnp.asarray(beta, float), jnp.asarray(time_constant, float)

    def prepared(self, scenarios: Scenario) -> "ExpertSchedule":
        """After the search for the experts of these scenarios, if there is one."""
        if isinstance(self.expert, Policy | Planner):
            return self
        return ExpertSchedule(self.expert(scenarios), self.beta, self.time_constant)

    def __call__(self, problem: PlanningProblem) -> ExpertMixture:
        """The mixture of the scenario's expert with π^k, after so many episodes."""
        expert = self.expert if isinstance(self.expert, Policy | Planner) else self.expert(problem.number)
        beta = self.beta * jnp.exp(-problem.episodes.astype(self.beta.dtype) / self.time_constant)
        return ExpertMixture(expert, problem.policy, beta)

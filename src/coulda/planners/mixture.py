"""What planners of a search are made for, and λ = β λ_e + (1 - β) π: an expert, asked less and less (section 4.3)."""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

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
        carry, log_expert, log_policy = self.ask(carry, state, observation)
        return carry, mixed(jnp.log(self.beta), jnp.log1p(-self.beta), log_expert, log_policy)

    def ask(self, carry: tuple[Any, Any], state: Any, observation: Any) -> tuple[tuple[Any, Any], Array, Array]:
        """Log λ_e and log π of every action; without an answer of the expert's, twice the latter."""
        expert_carry, advice = choose(self.expert, carry[0], state, observation)
        policy_carry, habit = self.policy(carry[1], observation)
        if not isinstance(advice, Categorical) or not isinstance(habit, Categorical):
            found = f"a {type(advice).__name__} and a {type(habit).__name__}"
            raise CouldaError(f"only discrete actions can be mixed; expert and policy gave {found}.")
        answered = jnp.isfinite(advice.logits).any()
        log_policy = jax.nn.log_softmax(habit.logits)
        log_expert = jax.nn.log_softmax(jnp.where(answered, advice.logits, 0.0))
        return (expert_carry, policy_carry), jnp.where(answered, log_expert, log_policy), log_policy

    def remember(self, carry: tuple[Any, Any], action: Any, reward: Array) -> tuple[Any, Any]:
        """Both remember."""
        return self.expert.remember(carry[0], action, reward), self.policy.remember(carry[1], action, reward)


class EpisodeMixture(Planner):
    """β p^λ_e(τ) + (1 - β) p^π(τ): the expert acts for a whole episode with probability β, and π otherwise.

    Who acts need not be drawn: given the actions so far, it is the expert with a probability that Bayes' rule tells,
    and the next action is of the mixture at these odds. So its probabilities are the mixture's, exactly, and an episode
    needs no noise but that of its actions. Otherwise as `ExpertMixture`.
    """

    mixture: ExpertMixture

    def initial_carry(self) -> Any:
        """Both memories, the log odds of the expert, and what the two said last."""
        beta = self.mixture.beta
        return self.mixture.initial_carry(), jnp.log(beta) - jnp.log1p(-beta), None

    def __call__(self, carry: Any, state: Any, observation: Any) -> tuple[Any, Categorical]:
        """The mean of the two, weighted by who it probably is."""
        memories, odds, _ = carry
        memories, log_expert, log_policy = self.mixture.ask(memories, state, observation)
        distribution = mixed(jax.nn.log_sigmoid(odds), jax.nn.log_sigmoid(-odds), log_expert, log_policy)
        return (memories, odds, log_expert - log_policy), distribution

    def remember(self, carry: Any, action: Any, reward: Array) -> Any:
        """Both remember, and the action tells who acts."""
        memories, odds, evidence = carry
        return self.mixture.remember(memories, action, reward), odds + evidence[action], None


def mixed(log_beta: Array, log_rest: Array, log_expert: Array, log_policy: Array) -> Categorical:
    """β λ_e + (1 - β) π of log-probabilities."""
    return Categorical(logits=jnp.logaddexp(log_beta + log_expert, log_rest + log_policy))


Mixing = Literal["step", "episode"]
MIXTURES: dict[Mixing, Callable[..., Planner]] = {
    "step": ExpertMixture,
    "episode": lambda *mixture: EpisodeMixture(ExpertMixture(*mixture)),
}
"""How long the one acts who was drawn: for a step, as in the paper, or for a whole episode."""


class ExpertSchedule(eqx.Module):
    """The mixture with β = `beta` · exp(-episodes / `time_constant`) (paper: 10⁵ episodes).

    Args:
        expert: λ_e: a policy or a planner; or a function that searches on the host and gives each scenario of a batch
            an expert of its own, such as `partial(solver_planners, num_boxes=3)`.
        beta: at the first episode, a probability.
        time_constant: in episodes.
        mixing: who acts is drawn at each "step", as in the paper, or for a whole "episode".
    """

    expert: Any
    beta: Array
    time_constant: Array
    mixing: Mixing = eqx.field(static=True)

    def __init__(
        self,
        expert: Actor | Experts,
        beta: float | Array = 1.0,
        time_constant: float | Array = 1e5,
        mixing: Mixing = "step",
    ):
        if mixing not in MIXTURES:
            raise CouldaError(f"mixing is {mixing!r}; name one of {tuple(MIXTURES)}.")
        if not 0 <= beta <= 1:
            raise CouldaError(f"beta is a probability, between 0 and 1; got {beta}.")
        if not time_constant > 0:
            raise CouldaError(f"time_constant is a number of episodes, more than 0; got {time_constant}.")
        self.expert, self.mixing = expert, mixing
        self.beta, self.time_constant = jnp.asarray(beta, float), jnp.asarray(time_constant, float)

    def prepared(self, scenarios: Scenario) -> "ExpertSchedule":
        """After the search for the experts of these scenarios, if there is one."""
        if isinstance(self.expert, Policy | Planner):
            return self
        return ExpertSchedule(self.expert(scenarios), self.beta, self.time_constant, self.mixing)

    def __call__(self, problem: PlanningProblem) -> Planner:
        """The mixture of the scenario's expert with π^k, after so many episodes."""
        expert = self.expert if isinstance(self.expert, Policy | Planner) else self.expert(problem.number)
        beta = self.beta * jnp.exp(-problem.episodes.astype(self.beta.dtype) / self.time_constant)
        return MIXTURES[self.mixing](expert, problem.policy, beta)

"""Monte Carlo in the environment itself: the truth, up to sampling, where one may run the policy."""

from dataclasses import dataclass
from typing import ClassVar

import equinox as eqx
import jax
import numpy as np
from jax import Array

from coulda.errors import CouldaError
from coulda.evaluation.distribution import distribution_of
from coulda.evaluation.estimate import Estimate, Method, Rows, Run, flawed, key_for
from coulda.evaluation.intervals import Precision, Ratios, Returns
from coulda.evaluation.reading import Reading, generator
from coulda.noise import check_key
from coulda.policies.checks import check_policy_fits
from coulda.pomdp import POMDP, Policy, batched, rollout
from coulda.pomdp.batching import raised_as_they_are
from coulda.pomdp.rollout import FINE


@dataclass(frozen=True)
class OnPolicy(Method):
    """The expected return of a policy that is run; its value is the truth of a table."""

    environment: POMDP
    """The real world, or what stands for it."""
    episodes: int = 10_000
    """How many to run."""

    walks: ClassVar[bool] = False

    def check_policy(self, policy: Policy) -> None:
        """It must fit the environment."""
        check_policy_fits(policy, self.environment)

    def rows(self, key: Array, reading: Reading, run: Run) -> Rows:
        """Run every policy, all on the same scenarios. Consumes `key`."""
        own = key_for(key, "environment")
        return {
            name: [on_policy(own, self.environment, policy, self.episodes, run.precision, reading.asked)]
            for name, policy in reading.policies.items()
        }


@raised_as_they_are()
def on_policy(
    key: Array,
    environment: POMDP,
    policy: Policy,
    episodes: int,
    precision: Precision | None = None,
    returns: Returns | None = None,
) -> Estimate:
    """The expected return of `policy`, by running it in `environment`; no log is needed. Consumes `key`."""
    check_key(key)
    if episodes < 1:
        raise CouldaError(f"episodes is {episodes}; run at least 1")
    asked, keys = returns or Returns(), jax.random.split(key, episodes)
    found, flaws = (np.asarray(x) for x in _run(environment, policy, asked.discount, keys))
    for episode in np.flatnonzero(flaws != FINE)[:1]:
        return flawed("on-policy", int(flaws[episode]), f"episode {episode} in the environment", episodes)
    ratios = Ratios.mean_of(found.astype(float))
    interval = (precision or Precision()).of_returns(generator(key), ratios)
    more = distribution_of(key, "on-policy", ratios.plain, np.ones(episodes), asked, precision or Precision())
    return Estimate("on-policy", ratios.value, interval, ratios.terms, float(episodes), beyond_the_mean=more)


@eqx.filter_jit
def _run(environment: POMDP, policy: Policy, discount: float, keys: Array) -> tuple[Array, Array]:
    def one(key: Array) -> tuple[Array, Array]:
        trajectory = rollout(environment, policy, environment.scenario_prior.sample(key))
        return trajectory.episode.discounted_return(discount), trajectory.first_flaw

    return batched(one, keys)

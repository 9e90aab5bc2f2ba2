"""`Method`: a family of estimators, which gives each policy a row of the table or several."""

import abc
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import jax
import numpy as np
from jax import Array

from coulda.evaluation.estimate import Estimate, unsupported
from coulda.evaluation.intervals import Precision, Returns
from coulda.evaluation.reading import Features, Log, Reading, read
from coulda.executors import Executor
from coulda.noise import check_key
from coulda.pomdp import Policy
from coulda.progress import Advance

Rows = dict[str, list[Estimate]]
"""By policy."""
Use = Literal["log", "scenarios", "environment", "support", "refits"]
USES: tuple[Use, ...] = ("log", "scenarios", "environment", "support", "refits")
"""What a table draws for: methods that need the log alone, scenarios, episodes of an environment, checks of a model."""


@dataclass(frozen=True)
class Run:
    """How a table is made: how precisely, by whom, and who is told."""

    precision: Precision = field(default_factory=Precision)
    executor: Executor | None = None
    """Who runs policies on scenarios; this process where there is none."""
    advance: Advance = lambda count: None  # noqa: ARG005
    """Told how many episodes more are done."""


class Method(abc.ABC):
    """A method is a value: what it needs beside the log and the policies, such as a model or a regression."""

    walks: ClassVar[bool] = True
    """Whether it needs the policies' probabilities along the log."""

    def check_policy(self, policy: Policy) -> None:  # noqa: B027
        """Refuse a policy that does not fit what the method rests on; it need fit nothing by default."""

    def check_log(self, log: Log) -> None:  # noqa: B027
        """Refuse a log that does not fit what the method rests on; it need fit nothing by default."""

    def features(self, log: Log) -> Features | None:  # noqa: ARG002
        """What it needs to see of observations; nothing by default."""
        return None

    @abc.abstractmethod
    def rows(self, key: Array, reading: Reading, run: Run) -> Rows:
        """Estimates of every policy of the reading. Consumes `key`: all policies share its draws."""


class SinglePolicyMethod(Method):
    """A method with one row per policy, which needs nothing but the log."""

    @property
    @abc.abstractmethod
    def name(self) -> str:
        """Such as "WIS"."""

    def rows(self, key: Array, reading: Reading, run: Run) -> Rows:
        """One estimate for each policy, its draws keyed by the method's name: other rows do not change them."""
        own = jax.random.fold_in(key_for(key, "log"), zlib.crc32(self.name.encode()))
        return {policy: [self._of(own, reading, policy, run.precision)] for policy in reading.policies}

    def _of(self, key: Array, reading: Reading, policy: str, precision: Precision) -> Estimate:
        for episode, step in np.argwhere(np.isnan(reading.taken[policy]))[:1]:
            said = (
                f"The policy's probabilities are NaN at step {step} of episode {episode}. Return finite logits there."
            )
            return unsupported(self.name, "not finite", said, len(reading))
        return self.of(key, reading, policy, precision)

    @abc.abstractmethod
    def of(self, key: Array, reading: Reading, policy: str, precision: Precision) -> Estimate:
        """The estimate of one policy. Consumes `key`."""

    def estimate(
        self,
        key: Array,
        policy: Policy,
        log: Log,
        precision: Precision | None = None,
        returns: Returns | None = None,
    ) -> Estimate:
        """The estimate of one policy from a log: the table's row without the table."""
        check_key(key)
        policy.check_spaces(log.schema.observation_space, log.schema.action_space)
        reading = reading_for([self], log, {"policy": policy}, returns)
        return self.rows(key, reading, Run(precision or Precision()))["policy"][0]


def key_for(key: Array, use: Use) -> Array:
    """The part of a table's key for one use. All policies share it: the same scenarios, the same noise."""
    return jax.random.split(key, len(USES))[USES.index(use)]


def reading_for(
    methods: list[Method], log: Log, policies: Mapping[str, Policy], returns: Returns | None = None
) -> Reading:
    """One pass over the log for what all of the methods need."""
    features = [found for method in methods if (found := method.features(log)) is not None]
    return read(log, policies, features, walk=any(method.walks for method in methods), returns=returns)

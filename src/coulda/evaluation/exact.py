"""CF-PE of an observed finite model without scenarios: the counterfactual expectation of each episode, in closed form.

What scenarios would be averaged for, E[G | h] under the policy and the noise of the logged episode, is computed by
backward induction over its counterfactual transition probabilities. Intervals are left with the sampling of episodes.
"""

from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from coulda.errors import CouldaError
from coulda.evaluation.drawing import STEPS
from coulda.evaluation.estimate import Estimate
from coulda.evaluation.intervals import Precision, Ratios
from coulda.evaluation.reading import Log, Reading, generator
from coulda.hindsight import Exact, ScenarioSource
from coulda.hindsight.tables import LoggedSteps, ObservedTables, logged_batch, observed_tables, state_numbers
from coulda.pomdp import POMDP, FinitePOMDP, Policy
from coulda.pomdp.batching import run

MOST_NUMBERS = 2**26
"""Of all counterfactual rows that are in memory at once."""


def exact_returns(model: FinitePOMDP, policy: Policy, log: Log, discount: float = 1.0) -> np.ndarray:
    """E[G | h] of `policy` on the noise of each logged episode, `[N]`; its own action noise is drawn afresh.

    Args:
        model: whose states are seen, and whose transitions are choices by Gumbel-max or inverse CDF.
        policy: one without memory.
        log: of the model's observations, the one after each last action included.
        discount: γ.
    """
    numbers, tables = state_numbers(model), observed_tables(model)
    decisions = decisions_of(policy, numbers, model.num_states)
    size = max(1, MOST_NUMBERS // (tables.probabilities.size * model.horizon))
    found, first = [], 0
    for batch in log.batches(size):
        steps, rows = logged_batch(tables, numbers, batch.padded(model.horizon), first)
        found.append(np.asarray(run(eqx.Partial(_value, tables, rows, decisions, discount), (steps,)), float))
        first += len(batch)
    return np.concatenate(found)


def exact_row(
    key: Array, model: POMDP, policy: Policy, reading: Reading, sampled: Estimate, precision: Precision
) -> Estimate:
    """CF-PE with all of each episode, without the noise of scenarios; its checks are those of the sampled one."""
    assert isinstance(model, FinitePOMDP)
    ratios = Ratios.mean_of(exact_returns(model, policy, reading.log, reading.asked.discount))
    interval, details = precision.of_returns(generator(key), ratios), {STEPS: model.horizon + 1}
    return replace(sampled, value=ratios.value, interval=interval, terms=ratios.terms, details=details)


def check_exact(model: object, policy: Policy) -> None:
    """Refuse what has no closed form."""
    if not isinstance(model, FinitePOMDP):
        raise CouldaError(f"exact CF-PE needs a finite model whose state is seen; {type(model).__name__} is none.")
    if jax.tree.leaves(policy.initial_carry()):
        raise CouldaError(f"exact CF-PE needs a policy without memory; {type(policy).__name__} remembers. Sample it.")


def check_exact_log(source: ScenarioSource | str, log: Log) -> None:
    """Refuse what the closed form is not of: another posterior, or episodes whose ends were not seen."""
    if not (isinstance(source, Exact) and source.behavior is None):
        raise CouldaError("exact CF-PE is that of the posterior Exact(model), without a behavior; give scenarios=it")
    if log.schema.last_observation == "repeated":
        raise CouldaError("exact CF-PE needs the observation after each last action, which this log lacks")


def _value(tables: ObservedTables, rows: Array, decisions: Array, discount: float, steps: LoggedSteps) -> Array:
    def step(value: Array, row: Array) -> tuple[Array, None]:
        worth = tables.expect(rows[row], discount * value)
        return jnp.einsum("sa,asc->sc", decisions, worth), None

    start = jnp.zeros((decisions.shape[0], 1), tables.probabilities.dtype)
    value, _ = jax.lax.scan(step, start, steps.row, reverse=True)
    return jnp.where(tables.terminal[steps.state[0]], 0.0, value[steps.state[0], 0])


def decisions_of(policy: Policy, numbers: np.ndarray, states: int) -> Array:
    """π(a | s), `[S, A]`."""
    seen = np.zeros(states, np.int32)
    seen[numbers[numbers >= 0]] = np.flatnonzero(numbers >= 0)
    ask = lambda observation: policy(policy.initial_carry(), observation)[1].probabilities  # pyright: ignore[reportAttributeAccessIssue]
    return jax.vmap(ask)(jnp.asarray(seen))

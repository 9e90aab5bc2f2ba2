"""Evaluation on scenarios: MB-PE, and CF-PE(t) (Algorithm 1), which differ in where the scenarios come from.

For each logged episode, scenarios u ~ p(U | h_t) are drawn and the policies are run on them: with t = 0 this is MB-PE,
with t > 0 it is CF-PE(t), and CF-PE with all of the episode. All policies are run on the same scenarios, so that their
differences are paired.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import gymnasium
import jax
import numpy as np
from jax import Array

from coulda.episodes.behavior import logged_behavior
from coulda.errors import CouldaError
from coulda.evaluation.diagnostics import (
    as_known_by,
    inferred_log_diagnostic,
    simulated_log_diagnostic,
    spread_diagnostic,
)
from coulda.evaluation.distribution import distribution_of
from coulda.evaluation.drawing import STEPS
from coulda.evaluation.estimate import Diagnostic, Estimate, Method, Rows, Run, flawed, key_for
from coulda.evaluation.exact import check_exact, check_exact_log, exact_row
from coulda.evaluation.foresight import foresight_diagnostic
from coulda.evaluation.grounds import Grounds, RefitError, grounded
from coulda.evaluation.inferred import information_diagnostic
from coulda.evaluation.intervals import Precision, Ratios, Returns
from coulda.evaluation.model_checks import Checked, Checks, blame_model, check, check_log_fits, support_diagnostic
from coulda.evaluation.reading import (
    LARGEST_BATCH,
    Log,
    Reading,
    batch_sizes,
    generator,
    padded_batch,
    padded_batches,
    sample_for,
    to_numpy,
)
from coulda.evaluation.scores import DRAWS
from coulda.evaluation.sensitivity import reparameterization_diagnostic
from coulda.evaluation.simulation import Simulation, simulate
from coulda.executors import Work, check_made_of, fingerprint, gather
from coulda.hindsight import Choice, Prior, ScenarioSource
from coulda.hindsight.choosing import chosen
from coulda.hindsight.source import asked, informed
from coulda.keys import apart, quick
from coulda.policies.checks import check_policy_fits
from coulda.pomdp import POMDP, BlackBoxPOMDP, Episode, FinitePOMDP, Policy, Scenario, rollout
from coulda.pomdp.batching import run
from coulda.pomdp.rollout import FINE

HOST_BATCH = 256
"""Episodes at once in a program of a user's own, each of which is an environment in memory, and slow."""
SIMULATED = 2000
"""Returns in the model from which their kurtosis is told: an event that one in a hundred has is met twenty times."""
TINY = 1e-300
"""In the place of a variance of zero, by which nothing is divided."""


@dataclass(frozen=True)
class OnScenarios(Method):
    """MB-PE, and CF-PE(t) for each t: the expected return in a model, on scenarios drawn for each logged episode."""

    model: POMDP
    """The SCM we believe in. It says itself which scenarios are malformed; they are scored as they fall."""
    scenarios: ScenarioSource | str = "auto"
    """Where scenarios come from: a source, such as `Particles(model)`, or the name of one. By default the first that
    can infer them is `choose`n; `Prior(model)` is MB-PE alone."""
    steps: tuple[int, ...] | None = None
    """The values of t, 0 being MB-PE; by default 0 and all that the source was given."""
    estimated_from: Log | None = None
    """The log that the model was estimated from, where it was: then it is told how much of what the policies do there
    rests on few examples."""
    grounds: Grounds | None = None
    """Of a model that `coulda.fitting.fit` made: its verdict goes into every row, and its error into every interval."""
    alternatives: Mapping[str, tuple[POMDP, ScenarioSource]] = field(default_factory=dict)
    """The same model under other reparameterizations, by name, each with its source: what CF-PE says must not depend on
    which one was chosen."""
    exact: bool = False
    """Whether CF-PE with all of each episode is computed and not sampled, for an observed finite model whose posterior
    is `Exact(model)`, and policies without memory. Scenarios are still drawn for the checks of the model."""

    walks: ClassVar[bool] = False

    def check_policy(self, policy: Policy) -> None:
        """It must fit the model."""
        check_policy_fits(policy, self.model)
        if self.exact:
            check_exact(self.model, policy)

    def check_log(self, log: Log) -> None:
        """The model must be able to see what was logged, to do what was done, and to go on for as long."""
        check_log_fits(self.model, log)
        if self.exact:
            check_exact_log(self.scenarios, log)

    @cached_property
    def choice(self) -> Choice:
        """The source, and why it is that one; the prior where none can infer anything."""
        if isinstance(self.scenarios, ScenarioSource):
            return asked(self.scenarios)
        try:
            return chosen(self.model, self.scenarios)
        except CouldaError as error:
            if self.scenarios != "auto":
                raise
            return Choice(Prior(self.model), f"the prior alone, so that there is no hindsight: {error}")

    @property
    def sources(self) -> tuple[ScenarioSource, ...]:
        """One for each row: the source at each t."""
        source = self.choice.source
        if isinstance(source, Prior):
            return (source,)
        if self.steps is not None:
            return tuple(source.given(t) for t in self.steps)
        # Without a history a source is the prior, which need not be inferred.
        nothing = Prior(self.model) if source.knows_the_prior else source.given(0)
        return (nothing,) if int(source.steps) == 0 else (nothing, source)

    def rows(self, key: Array, reading: Reading, run: Run) -> Rows:
        """Estimates of all policies by every source, from one pass over the log. Consumes `key`."""
        key_scenarios, key_support = key_for(key, "scenarios"), key_for(key, "support")
        refits = self._refit_errors(key, reading)
        found = evaluate_sources(key_scenarios, self.model, self.sources, reading, run, refits)
        for name, methods in found.items():
            if self.exact and "CF-PE" in methods:
                sampled, policy = methods["CF-PE"], reading.policies[name]
                exact = exact_row(key_scenarios, self.model, policy, reading, sampled, run.precision)
                methods["CF-PE"] = refits[name].widen(exact) if name in refits else exact
            blame_model(methods, self.choice.source.knows_the_prior, reading.chosen_by_ends)
            for estimate in methods.values():
                estimate.details["scenarios from"] = self.choice.why
            if self.estimated_from is not None:
                policy = reading.policies[name]
                thin = support_diagnostic(key_support, self.model, policy, self.estimated_from)
                methods |= {method: estimate.with_diagnostics(thin) for method, estimate in methods.items()}
            if self.grounds is not None:
                found[name] = grounded(key_support, self.grounds, reading.policies[name], reading.log, methods)
            else:
                found[name] = {method: as_known_by(reading, estimate) for method, estimate in methods.items()}
        for other, (model, source) in self.alternatives.items():
            again = evaluate_sources(key_scenarios, model, [source], reading, Run(run.precision), {})
            for name, methods in again.items():
                for method, estimate in methods.items():
                    mine = found[name][method]
                    found[name][method] = mine.with_diagnostics(reparameterization_diagnostic(mine, other, estimate))
        return {name: list(methods.values()) for name, methods in found.items()}

    def _refit_errors(self, key: Array, reading: Reading) -> dict[str, RefitError]:
        """By policy; of a model that was not fitted there are none."""
        if self.grounds is None:
            return {}
        key_refit = key_for(key, "refits")
        return {name: self.grounds.refit_error(key_refit, policy) for name, policy in reading.policies.items()}

    def work(
        self, log: Log, policies: Mapping[str, Policy], precision: Precision, returns: Returns | None = None
    ) -> Work:
        """What an executor does for this method: batch i is the i-th batch of the log, its parameters the key."""
        discount = (returns or Returns()).discount
        made_of = Ingredients(self.model, self.sources, log, policies, precision.scenarios, discount)
        return Work(
            jax.eval_shape(lambda: jax.random.key(0)),
            lambda index: padded_batch(log, self.model.horizon, index),
            _on_batch(made_of),
            jit=False,
            made_of=made_of.fingerprints,
        )


class Ingredients(NamedTuple):
    """What the work on a log's batches is made of."""

    model: POMDP
    sources: Sequence[ScenarioSource]
    log: Log
    policies: Mapping[str, Policy]
    scenarios: int
    """Per episode."""
    discount: float

    @property
    def fingerprints(self) -> dict[str, str]:
        """By name: what an executor's work must have in common with the call."""
        parts = {"model": self.model, "sources": list(self.sources), "policies": dict(self.policies)}
        parts |= {"scenarios per episode": self.scenarios, "discount": self.discount}
        return {name: fingerprint(part) for name, part in parts.items()} | {"log": self.log.fingerprint}


class OnBatch(eqx.Module):
    """What came of one batch of the log under one source; `[n, ...]` in each array."""

    returns: dict[str, Array]
    """By policy, `[n, M]`."""
    flaws: dict[str, Array]
    """By policy, `[n, M]`: see `Trajectory.first_flaw`."""
    itself: Array | np.ndarray
    """What whoever made the log returns on the same scenarios, `[n, M]`; `[n, 0]` where that is not known."""
    checked: Checked


@dataclass
class Tally:
    """What is kept of all batches under one source: an episode's mean and variance, and sums.

    Single returns are kept only where more than their mean is asked for: `draws`, by policy.
    """

    means: dict[str, list[np.ndarray]]
    variances: dict[str, list[np.ndarray]]
    draws: dict[str, list[np.ndarray]] | None
    itself: list[np.ndarray] = field(default_factory=list)
    """What whoever made the log returns on an episode's scenarios, on average; nothing where that is not known."""
    checks: Checks = field(default_factory=Checks)
    flaws: dict[str, tuple[int, str]] = field(default_factory=dict)
    """By policy: the first number that is none, and where it was met."""

    def add(self, found: OnBatch) -> None:
        """Count one batch."""
        for name, returns in found.returns.items():
            for episode, scenario in np.argwhere(np.asarray(found.flaws[name]) != FINE)[:1]:
                number = sum(map(len, self.means[name])) + episode
                where = f"scenario {scenario} of episode {number}"
                self.flaws.setdefault(name, (int(found.flaws[name][episode, scenario]), where))
            returns = np.asarray(returns, float)
            self.means[name].append(returns.mean(1))
            if self.draws is not None:
                self.draws[name].append(returns)
            self.variances[name].append(returns.var(1, ddof=1) if returns.shape[1] > 1 else np.zeros(len(returns)))
        if found.itself.shape[1]:
            self.itself.append(np.mean(found.itself, axis=1, dtype=float))
        self.checks.add(found.checked)


def evaluate_sources(
    key: Array,
    model: POMDP,
    sources: Sequence[ScenarioSource],
    reading: Reading,
    run: Run,
    refits: Mapping[str, RefitError],
) -> dict[str, dict[str, Estimate]]:
    """Estimates by policy and method, all sources in one pass over the log. Consumes `key`.

    Intervals hold the errors of `refits` by policy, so that the log's own mean is missed by more than they allow only
    where the model is wrong beyond what they say.

    With an executor the batches of the log are worked on wherever it says, to the same bits; it is refused where its
    work was not made of the same model, sources, policies, log, number of scenarios and discount. Where there is
    nothing but the model's prior, or hindsight cannot see how episodes ended, the model is held against the log by
    simulation; else by what it foresees.
    """
    key_scenarios, key_interval, key_check = apart(key, 3)
    policies = reading.policies
    empty = lambda: {name: [] for name in policies}
    tallies = [Tally(empty(), empty(), empty() if reading.asked.beyond_the_mean else None) for _ in sources]
    for found, count in _batches(key_scenarios, model, sources, reading, run):
        for tally, one in zip(tallies, found, strict=True):
            tally.add(to_numpy(one, count))
        run.advance(count)
    alone = all(int(source.steps) == 0 for source in sources) or reading.chosen_by_ends
    alone &= all(source.knows_the_prior for source in sources)
    broken = any(tally.flaws for tally in tallies)  # what is not finite cannot be compared
    simulation = simulate(key_check, model, reading) if alone and not broken else Simulation()
    simulated = _simulated_returns(key_check, model, sources, reading, run.precision.scenarios)
    # Of a finite model that is inferred exactly, all that can be foreseen is counted: see `mismatch`.
    counted = isinstance(model, FinitePOMDP) and sources[-1].is_exact
    foreseen = () if alone or counted else foresight_diagnostic(key_check, sources[-1], model, reading)
    rows: dict[str, dict[str, Estimate]] = {name: {} for name in policies}
    for source, tally in zip(sources, tallies, strict=True):
        shared = simulation.diagnostics + tally.checks.diagnostics(model, source, reading)
        shared += foreseen if int(source.steps) > 0 else ()
        for name in policies:
            steps = min(int(source.steps), model.horizon + 1)
            given = shared, simulated.get(name), key_interval, run.precision, steps
            estimate = _estimate(method_name(source, model), tally, name, *given)
            estimate = refits[name].widen(estimate) if name in refits else estimate
            if tally.draws is not None and estimate.value is not None:
                drawn = np.concatenate(tally.draws[name])
                asked_of = estimate.method, drawn, np.ones(len(drawn)), reading.asked, run.precision
                estimate = replace(estimate, beyond_the_mean=distribution_of(key_interval, *asked_of))
            if estimate.interval is not None and len(simulation.made):
                itself = simulated_log_diagnostic(simulation.made, simulation.logged, estimate.interval)
                estimate = replace(estimate, diagnostics=itself + estimate.diagnostics)
            elif estimate.interval is not None and tally.itself:
                made = np.concatenate(tally.itself)
                itself = inferred_log_diagnostic(made, reading, estimate.interval, paired=steps > 0)
                estimate = replace(estimate, diagnostics=itself + estimate.diagnostics)
            rows[name][estimate.method] = estimate
    return rows


def _batches(
    key: Array,
    model: POMDP,
    sources: Sequence[ScenarioSource],
    reading: Reading,
    run: Run,
) -> Iterator[tuple[list[OnBatch], int]]:
    """What comes of each batch of the log, and how many of its episodes count."""
    log = reading.log
    made_of = Ingredients(model, sources, log, reading.policies, run.precision.scenarios, reading.asked.discount)
    if run.executor is None:
        function = _on_batch(made_of)
        largest = HOST_BATCH if isinstance(model, BlackBoxPOMDP) else LARGEST_BATCH
        for inputs, count in padded_batches(log, model.horizon, largest):
            yield function(key, inputs), count
        return
    check_made_of(run.executor, made_of.fingerprints)
    run.executor.publish(0, key)
    counts = batch_sizes(log)
    for batch in gather(run.executor, range(len(counts))):
        yield batch.value, counts[batch.index]


def _simulated_returns(
    key: Array, model: POMDP, sources: Sequence[ScenarioSource], reading: Reading, scenarios: int
) -> dict[str, np.ndarray]:
    """By policy: returns on further scenarios of the prior, by the program that made MB-PE's.

    Nothing where there is none, where the model is a user's own program, which is slow, and of what is not finite.
    """
    if not isinstance(sources[0], Prior) or isinstance(model, BlackBoxPOMDP):
        return {}
    log = reading.log
    function = _on_batch(Ingredients(model, sources[:1], log, reading.policies, scenarios, reading.asked.discount))
    inputs, count = padded_batch(log, model.horizon, 0), batch_sizes(log)[0]
    keys = apart(key, -(-SIMULATED // (count * scenarios)))
    made = [to_numpy(function(one, inputs)[0].returns, count) for one in keys]
    found = {name: np.concatenate([returns[name].ravel() for returns in made]).astype(float) for name in made[0]}
    return {name: returns for name, returns in found.items() if np.isfinite(returns).all()}


def _on_batch(made_of: Ingredients) -> Callable[[Array, Any], list[OnBatch]]:
    model, sources, log, policies, scenarios, discount = made_of
    repeated = log.schema.last_observation == "repeated"
    behavior = _who_acted(model, sources, log, policies)

    def one(source: ScenarioSource, key: Array, inputs: Any) -> OnBatch:
        # Programs of their own, so that inference is compiled once and not for each set of policies.
        infer = eqx.Partial(_infer, model, source, key, scenarios, repeated)
        drawn, checked = run(infer, inputs)
        score = {name: eqx.Partial(_returns, model, policy, discount) for name, policy in policies.items()}
        scored = {name: run(function, (drawn,)) for name, function in score.items()}
        returns, flaws = ({name: pair[i] for name, pair in scored.items()} for i in (0, 1))
        itself = np.zeros((len(checked.malformed), 0))
        if behavior is not None:
            itself, _ = run(eqx.Partial(_returns, model, behavior, discount), (drawn,))
        return OnBatch(returns, flaws, itself, checked)

    return lambda key, inputs: [one(source, key, inputs) for source in sources]


def _who_acted(
    model: POMDP, sources: Sequence[ScenarioSource], log: Log, policies: Mapping[str, Policy]
) -> Policy | None:
    """Whoever made the log, to be run on inferred scenarios; None where nothing is inferred, or nobody can tell."""
    known = isinstance(model.action_space, gymnasium.spaces.Discrete | gymnasium.spaces.Box)
    if not known or not any(int(source.steps) > 0 for source in sources):
        return None
    some = sample_for(np.random.default_rng(0), model, log)
    behavior, doubt = logged_behavior(some, some.padded(model.horizon), policies)
    return behavior if doubt is None else None


def _infer(
    model: POMDP, source: ScenarioSource, key: Array, scenarios: int, repeated: bool, episode: Episode, index: Array
) -> tuple[Scenario, Checked]:
    """Scenarios `[M, ...]` of one episode, and what is seen of them, and of more where more cost little."""
    source, key = informed(source, repeated, episode), jax.random.fold_in(quick(key), index)
    count = max(scenarios, DRAWS) if source.answers_many else scenarios
    drawn, inference = source.infer_many(key, episode, count)
    checked = check(key, model, source, episode, drawn, inference, repeated=repeated)
    return jax.tree.map(lambda leaf: leaf[:scenarios], drawn), checked


def _returns(model: POMDP, policy: Policy, discount: float, scenarios: Scenario) -> tuple[Array, Array]:
    """G on each of the scenarios, and where it is none, `[M]` each."""

    def one(scenario: Scenario) -> tuple[Array, Array]:
        trajectory = rollout(model, policy, scenario)
        return trajectory.episode.discounted_return(discount), trajectory.first_flaw

    return jax.vmap(one)(scenarios)


def method_name(source: ScenarioSource, model: POMDP) -> str:
    """MB-PE, CF-PE(t), or CF-PE: of the whole episode, the observation after the last action included (t = T + 1)."""
    steps = int(source.steps)
    if steps > model.horizon:
        return "CF-PE"
    return "MB-PE" if steps == 0 else f"CF-PE({steps})"


def _estimate(
    method: str,
    tally: Tally,
    policy: str,
    shared: tuple[Diagnostic, ...],
    simulated: np.ndarray | None,
    key: Array,
    precision: Precision,
    steps: int,
) -> Estimate:
    """Of one policy: an episode's term is the mean over its scenarios, so that the interval covers their uncertainty.

    With `steps` of hindsight it is told how much of the variance is that of inference, and how much of the return it
    knows.
    """
    terms = np.concatenate(tally.means[policy])
    if policy in tally.flaws:
        return flawed(method, *tally.flaws[policy], len(terms))
    ratios = Ratios.mean_of(terms)
    details: dict[str, Any] = {STEPS: steps, "scenarios an episode": precision.scenarios}
    if precision.scenarios > 1 and len(terms) > 1:
        within = float(np.concatenate(tally.variances[policy]).mean())
        between = max(float(terms.var(ddof=1)) - within / precision.scenarios, 0.0)
        details |= {"variance between episodes": between, "variance within an episode": within}
        if steps:
            error = within / precision.scenarios
            details["share of the variance that is inference"] = error / max(between + error, TINY)
            shared = (*shared, information_diagnostic(between / max(between + within, TINY)))
    evidence = float(np.sum(tally.checks.inferred.log_evidence, dtype=float))
    if steps and not np.isnan(evidence):
        details["log evidence"] = evidence
    found = precision.of_returns(generator(key), ratios)
    return Estimate(
        method,
        ratios.value,
        found,
        terms,
        float(len(terms)),
        diagnostics=spread_diagnostic(terms, simulated) + shared,
        details=details,
    )

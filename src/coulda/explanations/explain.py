"""`explain` and `explain_log`: which decisions mattered, in one episode and over a log."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from coulda.episodes import Schema
from coulda.episodes.validation import from_episodes
from coulda.errors import CouldaError
from coulda.evaluation import Estimate
from coulda.evaluation.exact import decisions_of
from coulda.evaluation.reading import Log
from coulda.explanations.answers import Answers, LogExplanation
from coulda.explanations.explanation import Explanation, inherited
from coulda.explanations.program import Choices, Solved, solve
from coulda.explanations.question import Question
from coulda.explanations.scenarios import search_episode
from coulda.hindsight import ScenarioSource
from coulda.hindsight.tables import (
    LoggedSteps,
    ObservedTables,
    check_made,
    logged_batch,
    observed_tables,
    state_numbers,
)
from coulda.noise import check_key
from coulda.pomdp import POMDP, Episode, FinitePOMDP
from coulda.pomdp.batching import run
from coulda.progress import Advance, followed

MOST_NUMBERS = 2**26
"""Of all counterfactual rows that are in memory at once."""
LARGE = 2**16
"""Numbers in a table from which on episodes are solved one by one, which leaves out what one of them does not need."""
SEARCHED_AT_ONCE = 64
"""Episodes that are in memory at once while each is searched by itself."""


def explain(
    key: Array,
    model: POMDP,
    episode: Episode,
    source: ScenarioSource | None = None,
    question: Question | None = None,
    *,
    trust: Estimate | None = None,
    scenarios: int = 32,
) -> Explanation:
    """Which decisions of one episode mattered; see `explain_log`, whose answer for a log of one episode this is."""
    log = from_episodes(Schema(model.observation_space, model.action_space), [as_numpy(episode)], [False])
    return explain_log(key, model, log, source, question, trust=trust, scenarios=scenarios, keep_policies=True)[0]


def explain_log(
    key: Array,
    model: POMDP,
    log: Log,
    source: ScenarioSource | None = None,
    question: Question | None = None,
    *,
    trust: Estimate | None = None,
    scenarios: int = 32,
    guarantees: bool = True,
    keep_policies: bool = False,
    first: int = 0,
    advance: Advance | None = None,
) -> LogExplanation:
    """What at most k other decisions would have made of each logged episode.

    Args:
        key: consumed, where scenarios are drawn.
        model: the SCM that we believe in.
        log: episodes with the observation after each last action.
        source: where scenarios come from, such as `Exact(model)` where states are hidden or `ObservedStates(model)`.
            Then one sequence of actions is looked for, the best on the mean of half of the scenarios drawn for an
            episode, and its value is that on the other half. Without a source the model must be finite and its states
            seen: then the best way of deciding state by state is found exactly, and nothing is drawn.
        question: how many decisions may be changed, which, into what, at what cost.
        trust: an estimate by the same model and source on such a log, whose verdict the answer inherits.
        scenarios: drawn for each episode, half to choose by and half to score; where the noise is known exactly, one.
        guarantees: whether to find what holds for every SCM with the same probabilities, which takes ten times longer.
        keep_policies: whether to keep what would be decided in each state, `[N, T, S, k + 1]`.
        first: the number that the first of these episodes is called by.
        advance: told how many episodes more are done.
    """
    check_key(key)
    question = question or Question()
    check(model, log, source, question, first)
    with followed(advance, "explaining", len(log)) as tell:
        if source is not None:
            check_scenarios(scenarios)
            answers = _by_search(key, model, log, source, question, scenarios, first, tell)
            states = lambda state, action: state  # noqa: ARG005
        else:
            assert isinstance(model, FinitePOMDP)
            answers, states = _by_dynamic_programming(model, log, question, guarantees, keep_policies, first, tell)
    return LogExplanation(question, answers, inherited(trust), states, first)


def check(model: POMDP, log: Log, source: ScenarioSource | None, question: Question, first: int = 0) -> None:
    """Refuse what cannot be answered before any work: wrong questions, and logs that the model cannot have produced.

    What hidden states would have to be is known only when they are inferred: with a source, an impossible episode is
    refused when its turn comes.
    """
    question.check(model, log)
    if source is not None:
        return
    if not isinstance(model, FinitePOMDP):
        raise CouldaError(
            f"{type(model).__name__} is no finite model; give a source of scenarios, such as ObservedStates(model)."
        )
    check_made(model, (batch.padded(model.horizon) for batch in log.batches()), first)


def check_scenarios(count: int) -> None:
    """Refuse fewer scenarios than can be chosen by and scored on."""
    if count < 4:
        raise CouldaError(f"scenarios is {count}; draw at least 4, two to choose by and two to score")


def _by_dynamic_programming(
    model: FinitePOMDP,
    log: Log,
    question: Question,
    guarantees: bool,
    keep_policies: bool,
    first: int,
    advance: Advance,
) -> tuple[Answers, Callable[[Any, Any], Any]]:
    numbers, tables = state_numbers(model), observed_tables(model)
    cost, discount, worth = (
        jnp.asarray(x, tables.probabilities.dtype)
        for x in (question.cost, question.discount, question.worth(model.horizon))
    )
    policy = question.afterwards
    afterwards = None if policy is None else decisions_of(policy, numbers, model.num_states)
    choices = Choices(question.free(model.horizon), question.allowed(model), cost, discount, worth, afterwards)
    size = max(1, MOST_NUMBERS // (tables.probabilities.size * model.horizon))
    found = []
    for batch in log.batches(size):
        steps, rows = logged_batch(tables, numbers, batch.padded(model.horizon), first)
        program = eqx.Partial(_solved, tables, rows, choices, question.changes, guarantees, keep_policies)
        one_by_one = tables.probabilities.size > LARGE
        solved = _one_by_one(program, steps) if one_by_one else run(program, (steps,))
        solved = jax.tree.map(np.asarray, solved)
        found.append(_answers(batch.discounted_returns(question.discount), steps, solved, guarantees))
        first += len(batch)
        advance(len(batch))
    answers = jax.tree.map(lambda *parts: np.concatenate(parts), *found)
    return answers, eqx.Partial(_model_states, model, numbers)


def _by_search(
    key: Array,
    model: POMDP,
    log: Log,
    source: ScenarioSource,
    question: Question,
    scenarios: int,
    number: int,
    advance: Advance,
) -> Answers:
    found = []
    for batch in log.batches(SEARCHED_AT_ONCE):
        padded = batch.padded(model.horizon)
        for i in range(len(batch)):
            episode = jax.tree.map(lambda leaf, i=i: leaf[i], padded)
            one = search_episode(jax.random.fold_in(key, number), model, episode, source, question, scenarios, number)
            found.append(one)
            number += 1
            advance(1)
    return jax.tree.map(lambda *parts: np.stack(parts), *found)


def _solved(
    tables: ObservedTables, rows: Array, choices: Choices, changes: int, bounds: bool, keep_policy: bool, steps: Any
) -> Solved:
    found = solve(tables, rows, choices, changes, bounds, steps)
    return found if keep_policy else found._replace(policy=None)


@eqx.filter_jit
def _one_by_one(program: Callable[[Any], Solved], steps: LoggedSteps) -> Solved:
    return jax.lax.map(program, steps)


def _answers(logged: np.ndarray, steps: LoggedSteps, solved: Any, guarantees: bool) -> Answers:
    """Values are what changes gain on top of the log, so that none of them is the log itself, bit for bit."""
    path, did, taken = solved.path, np.asarray(steps.action), np.asarray(steps.live)

    def on_top(value: Any) -> np.ndarray:
        return logged[:, None] + (value.astype(float) - value[:, :1].astype(float))

    value, live = on_top(solved.value), path.live
    return Answers(
        logged=logged,
        value=value,
        error=np.zeros_like(value),
        bound=value,
        optimal=np.ones(len(logged), bool),
        did=did,
        action=path.action,
        reward=path.reward,
        live=live,
        state=path.state,
        changed=live & taken[:, None] & (path.action != did[:, None]),
        single=solved.single,
        worst=on_top(solved.worst) if guarantees else None,
        best=on_top(solved.best) if guarantees else None,
        influence=path.influence.sum(-1) / np.maximum(live.sum(-1), 1),
        policy=solved.policy,
    )


def _model_states(model: FinitePOMDP, numbers: np.ndarray, state: np.ndarray, action: np.ndarray) -> Any:
    """The model's states `[T + 1, ...]` of their numbers along a path."""
    seen = np.argsort(numbers, kind="stable")[np.searchsorted(np.sort(numbers), state)]
    before = np.append(-1, action).astype(np.int32)

    def one(previous: Array, observation: Array, number: Array) -> Any:
        candidates = model.states(previous, observation)
        return jax.tree.map(lambda leaf: leaf[jnp.argmax(candidates.index == number)], candidates)

    arrays = (jnp.asarray(x, jnp.int32) for x in (before, seen, state))
    return jax.tree.map(np.asarray, jax.vmap(one)(*arrays))


def as_numpy(episode: Episode) -> Episode:
    """The live steps of an episode, which may be padded."""
    length = int(np.asarray(episode.live).sum())
    found = jax.tree.map(np.asarray, episode)
    if any(len(leaf) < length + 1 for leaf in jax.tree.leaves(found.observation)):
        raise CouldaError(
            f"the episode has {length} steps and {len(jax.tree.leaves(found.observation)[0])} observations; the one "
            "after the last action is missing"
        )
    cut = lambda tree, end: jax.tree.map(lambda leaf: leaf[:end], tree)
    steps = (cut(x, length) for x in (found.action, found.reward, found.live, found.log_prob))
    return Episode(cut(found.observation, length + 1), *steps)

"""Does the model agree with the log? Checks that need no truth.

- Malformed: could the world have made the scenarios at all?
- Replay: do the inferred scenarios reproduce the logged episodes under their own actions?
- Support: where the model was estimated from a log, how many examples has what the policy does in it?
- Hindsight: does it move the value, which in a right model it does not?

Whether the inferred noise is distributed as the model says is a check of its own (`mismatch`).
"""

from dataclasses import dataclass, field, replace
from typing import Any

import equinox as eqx
import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from coulda.episodes.log import spans
from coulda.errors import CouldaError
from coulda.evaluation.diagnostics import RARE, UNUSUAL, graded, log_diagnostics
from coulda.evaluation.estimate import Diagnostic, Estimate
from coulda.evaluation.inferred import inference_diagnostics
from coulda.evaluation.mismatch import Shift, Shifts, shift
from coulda.evaluation.reading import Log, Reading
from coulda.hindsight import Inference, Prior, ScenarioSource
from coulda.hindsight.source import fresh
from coulda.pomdp import POMDP, Episode, FinitePOMDP, Policy, Scenario, batched, rollout
from coulda.pomdp.observing import no_density, weight_of
from coulda.pomdp.rollout import run_actions
from coulda.scales import skewed_z, student_above, unit_of

_OF_THE_MODEL = ("replay", "ends", "mismatch", "foresight")
"""Diagnostics of hindsight that speak against its model."""
FEW_EXAMPLES = 10
"""Below this many a probability that is estimated from them is off by up to 0.16 on average."""


def check_log_fits(model: POMDP, log: Log) -> None:
    """Refuse a log that cannot be one of the model's: other observations, other actions, longer episodes."""
    name = type(model).__name__
    for what, logged, own in (
        ("observations", log.schema.observation_space, model.observation_space),
        ("actions", log.schema.action_space, model.action_space),
    ):
        if not _may_hold(own, logged):
            raise CouldaError(f"the log's {what} are {logged}, but those of {name} are {own}; they must be the same")
    if log.max_length > model.horizon:
        raise CouldaError(
            f"the log has an episode of {log.max_length} steps, but {name} ends after {model.horizon}; give it a "
            f"horizon of at least {log.max_length}"
        )


def _may_hold(space: gymnasium.Space, logged: gymnasium.Space) -> bool:
    """Whether what was logged may come from the space; a log may not have seen the last of numbered values."""
    if isinstance(space, gymnasium.spaces.Discrete) and isinstance(logged, gymnasium.spaces.Discrete):
        return space.start <= logged.start and logged.start + logged.n <= space.start + space.n
    return type(space) is type(logged) and space.shape == logged.shape


class Replay(eqx.Module):
    """How well a scenario reproduces the logged episode under its own actions, within the history it was given."""

    agrees: Array
    """Steps of the history whose observation, and whose reward before it, come out as logged."""
    steps: Array
    """Steps of the history."""
    goes_on: Array
    """Whether the model goes on where the episode stopped; False where the history stops short of that, and where the
    model's own horizon ends it."""
    over_before: Array
    """Whether the model's episode is over before the logged one."""


def replay(
    model: POMDP, made: tuple[Any, Any, Array], episode: Episode, steps: Array, *, exactly: bool, rewards: bool = True
) -> Replay:
    """Compare what the logged actions made on a scenario (`run_actions`) with what was logged up to h_t, t = `steps`.

    Observations must come out as logged, `exactly`; or be possible in the states that come out, where the noise of
    observations was not inferred and it can be told. So must `rewards`, where they were evidence.
    """
    states, observations, paid = made
    order, length = jnp.arange(model.horizon + 1), episode.length
    within, over = order < jnp.minimum(steps, length + 1), jax.vmap(model.terminal)(states)
    if exactly:
        same = jax.tree.map(lambda ours, logged: _same_rows(ours, logged, within), observations, episode.observation)
        seen = jnp.stack(jax.tree.leaves(same)).all(0)
    elif no_density(model) is None:
        seen = jax.vmap(lambda o, s: weight_of(model, o, s))(episode.observation, states) > -jnp.inf
    else:
        seen = jnp.ones(model.horizon + 1, bool)
    agrees = jnp.concatenate([jnp.ones(1, bool), _same_rows(paid, episode.reward, within[1:]) | (not rewards)])
    return Replay(
        jnp.sum(within & agrees & seen),
        jnp.sum(within),
        goes_on=(within & (order == length) & (order < model.horizon) & ~over).any(),
        over_before=(within & (order < length) & over).any(),
    )


def _same_rows(a: Array, b: Array, within: Array) -> Array:
    """Whether rows are equal, numbers to 1e-3 of their size: inferred noise passes through float32 and back.

    What was made of a large number has its rounding: 1e-5 of the row before. What is missing in the second is equal to
    anything; so is what is not `within` the history.
    """
    a, b = a.reshape(len(a), -1).astype(float), b.reshape(len(b), -1).astype(float)
    b = jnp.where(within[:, None], b, jnp.nan)
    before = jnp.nan_to_num(jnp.abs(jnp.concatenate([b[:1], b[:-1]])), posinf=0.0)
    near = 1e-3 * (unit_of(b, axis=0) + jnp.abs(b)) + 1e-5 * before
    return ((jnp.abs(a - b) <= near) | (a == b) | jnp.isnan(b)).all(1)


class Checked(eqx.Module):
    """What is seen of the scenarios of one episode, `[M]` each, and of how they were inferred."""

    malformed: Array
    inference: Inference
    history: "Against | None"
    """None of the prior, which was given none."""


class Against(eqx.Module):
    """Scenarios held against the history that they were inferred from."""

    replay: Replay
    shift: Shift
    """The mean over the scenarios."""


def check(
    key: Array,
    model: POMDP,
    source: ScenarioSource,
    episode: Episode,
    scenarios: Scenario,
    inference: Inference,
    *,
    repeated: bool,
) -> Checked:
    """Hold scenarios `[M, ...]` against the episode that they were inferred from, and against the prior.

    The key is that of the inference, from which the prior's own draws are made.
    """
    malformed = jax.vmap(model.malformed)(scenarios)
    if isinstance(source, Prior):
        return Checked(malformed, inference, None)
    observed, rewards = source.infers_observation_noise, source.weighs_rewards
    made = jax.vmap(lambda scenario: run_actions(model, scenario, episode.action))(scenarios)
    again = lambda one: replay(model, one, episode, source.steps, exactly=observed, rewards=rewards)
    keys = jax.random.split(key, jax.tree.leaves(scenarios)[0].shape[0])
    # Gumbel noise of finite models is held against the prior's own draws, which most of it is.
    carried = isinstance(model, FinitePOMDP) or not source.answers_many
    prior = jax.vmap(lambda one: fresh(one, model))(keys) if carried else None
    shifted = shift(model, scenarios, made[0], prior, episode, source.steps, observed=observed, closing=not repeated)
    return Checked(malformed, inference, Against(jax.vmap(again)(made), shifted))


@dataclass
class Checks:
    """What is kept of what was seen of all episodes."""

    replays: list[Replay] = field(default_factory=list)
    malformed: list[float] = field(default_factory=list)
    shifts: Shifts = field(default_factory=Shifts)
    inference: list[Inference] = field(default_factory=list)

    def add(self, found: Checked) -> None:
        """Count a batch, `[n, M]` in each array."""
        self.malformed.extend(np.mean(found.malformed, axis=1).tolist())
        self.inference.append(found.inference)
        if found.history is not None:
            mean = lambda leaf: np.mean(leaf, axis=1, dtype=float)
            self.replays.append(jax.tree.map(mean, found.history.replay))
            self.shifts.add(found.history.shift)

    @property
    def inferred(self) -> Inference:
        """How well the scenarios of each episode could be inferred, `[N]` each."""
        return jax.tree.map(lambda *parts: np.concatenate(parts), *self.inference)

    def diagnostics(self, model: POMDP, source: ScenarioSource, reading: Reading) -> tuple[Diagnostic, ...]:
        """What all policies share: checks of the scenarios, and of the log."""
        found = missing_end(source, reading) + log_diagnostics(reading)
        if history := int(source.steps) > 0:
            replayed = jax.tree.map(lambda *parts: np.concatenate(parts), *self.replays)
            ends = ends_diagnostic(replayed, reading.terminated)
            found = replay_diagnostic(float(replayed.agrees.sum()), float(replayed.steps.sum())) + ends + found
        if not source.is_exact:
            found = inference_diagnostics(self.inferred) + found
        # Evidence that stops short of the end is chosen by how the episode ended: its average is not the prior.
        if history and not reading.chosen_by_ends:
            found = self.shifts.diagnostic() + found
        if type(model).malformed is not POMDP.malformed:
            found = (malformed_diagnostic(float(np.mean(self.malformed))), *found)
        return found


def missing_end(source: ScenarioSource, reading: Reading) -> tuple[Diagnostic, ...]:
    """Of hindsight that cannot see how episodes ended."""
    if int(source.steps) == 0 or not reading.chosen_by_ends:
        return ()
    sentence = (
        "The log lacks the observation after each last action, so that how episodes ended does not enter their "
        "scenarios; where the end depends on chance, this biases the value."
    )
    return (Diagnostic("last observation", 0.0, "caution", sentence),)


def malformed_diagnostic(share: float) -> Diagnostic:
    """Scenarios that the world could not have made: their share bounds, and usually is, the error that they cause."""
    sentence = f"{share:.1%} of the scenarios could not occur in the world; they were scored as they fell."
    return Diagnostic("malformed", share, graded(share, 0.01, 0.1), sentence)


def replay_diagnostic(agrees: float, steps: float) -> tuple[Diagnostic, ...]:
    """Posterior-predictive replay, of so many steps; nothing to say where no history was given."""
    if not steps:
        return ()
    missed = 1 - agrees / steps
    return (
        Diagnostic(
            "replay",
            1 - missed,
            # An exact posterior misses nothing. One step in a hundred is an episode in two of 50 steps that is not
            # quite the logged one; one in ten is no hindsight at all.
            graded(missed, 0.01, 0.1),
            f"Under the logged actions the inferred scenarios reproduce {1 - missed:.1%} of the logged steps.",
        ),
    )


def ends_diagnostic(replays: Replay, terminated: np.ndarray) -> tuple[Diagnostic, ...]:
    """Whether inferred scenarios end where the log says that its episodes did, `[N]` each.

    A source may take an end that its model cannot have for a log that was cut short, so that it is no evidence. Where
    the log says that nothing was cut, the model is wrong.
    """
    goes_on, early = np.asarray(replays.goes_on) * terminated, np.asarray(replays.over_before)
    missed = float(np.maximum(goes_on, early).mean())
    sentence = "The inferred scenarios end where the logged episodes did."
    if missed > 0 and goes_on.mean() >= early.mean():
        sentence = (
            f"{goes_on.mean():.1%} of the logged episodes were over where the model goes on: what it pays after that "
            "is not of this world. Give it a `terminal`, or a horizon; or say in the log that they were truncated."
        )
    elif missed > 0:
        sentence = f"{early.mean():.1%} of the logged episodes go on where the model's are over."
    return (Diagnostic("ends", 1 - missed, graded(missed, 0.01, 0.1), sentence),)


def hindsight_diagnostic(hindsight: Estimate, prior: Estimate, ends_unseen: bool) -> Diagnostic:
    """Whether hindsight moves the value: in a right model it does not (Corollary 1), paired on the same noise.

    Where `ends_unseen`, it does so in a right model too.
    """
    paired, count = hindsight.terms - prior.terms, len(hindsight.terms)
    error = paired.std(ddof=1) / np.sqrt(count)
    chance = 1.0
    if error > 0:
        z = skewed_z(count, *(((paired / paired.std()) ** n).mean() for n in (1, 2, 3)))
        chance = float(2 * student_above(abs(z), count - 1))
    sentence = f"Hindsight moves the value by {paired.mean():+.3g} ± {error:.2g}"
    if chance >= UNUSUAL:
        return Diagnostic("hindsight", chance, "trust", f"{sentence}, which is nothing.")
    why = (
        ": the log lacks the observation after each last action, so that hindsight does not know how episodes ended."
        if ends_unseen
        else f", which a right model would do with probability {chance:.0e}: its beliefs about noise are wrong."
    )
    return Diagnostic("hindsight", chance, "do not trust" if chance < RARE else "caution", sentence + why)


def blame_model(methods: dict[str, Estimate], one_prior: bool, ends_unseen: bool) -> None:
    """What hindsight finds wrong with the model is wrong with MB-PE too, which by itself cannot know.

    Where both rest on `one_prior`, a value that hindsight moves speaks against it, and so against both. A network that
    imagines badly when it is given nothing may still infer well: then it speaks against MB-PE alone. Where
    `ends_unseen` move it, that is nothing against the model, and CF-PE alone is biased.
    """
    for name in [name for name in methods if name != "MB-PE" and "MB-PE" in methods]:
        prior, hindsight = methods["MB-PE"], methods[name]
        if prior.value is None or hindsight.value is None:
            continue
        moved = hindsight_diagnostic(hindsight, prior, ends_unseen)
        methods[name] = hindsight.with_diagnostics(moved) if one_prior else hindsight
        found = [d for d in hindsight.diagnostics if d.name in _OF_THE_MODEL]
        others = [d for d in prior.diagnostics if d.name not in (*_OF_THE_MODEL, moved.name)]
        methods["MB-PE"] = replace(prior, diagnostics=(*found, *(() if ends_unseen else (moved,)), *others))


def support_diagnostic(key: Array, model: POMDP, policy: Policy, log: Log, episodes: int = 1000) -> Diagnostic:
    """Of a model that was estimated from `log`: the share of the policy's steps with few examples in the log.

    For discrete observations and actions; an example of a step is the same action after the same observation.
    """
    spaces = log.schema.observation_space, log.schema.action_space
    if not all(isinstance(space, gymnasium.spaces.Discrete) for space in spaces):
        raise CouldaError(f"support is counted for discrete observations and actions; these are {spaces}")
    counts = np.zeros([int(space.n) for space in spaces])  # pyright: ignore[reportAttributeAccessIssue]
    for batch in log.batches():
        rows = spans(np.cumsum(batch.lengths + 1) - batch.lengths - 1, batch.lengths)
        np.add.at(counts, (batch.observation[rows], batch.action), 1)
    seen, done, live = (np.asarray(x) for x in _visits(model, policy, jax.random.split(key, episodes)))
    few = float((counts[seen[live], done[live]] < FEW_EXAMPLES).mean())
    return Diagnostic(
        "support",
        1 - few,
        graded(few, 0.05, 0.25),
        f"{few:.0%} of the policy's steps in the model have fewer than {FEW_EXAMPLES} examples in the log that the "
        "model was estimated from; what they lead to is hardly known, and the interval does not say so.",
    )


@eqx.filter_jit
def _visits(model: POMDP, policy: Policy, keys: Array) -> tuple[Array, Array, Array]:
    """Observations, actions and whether the steps were taken, `[n, T]` each."""

    def one(key: Array) -> tuple[Array, Array, Array]:
        episode = rollout(model, policy, model.scenario_prior.sample(key)).episode
        return episode.observation[:-1], episode.action, episode.live

    return batched(one, keys)

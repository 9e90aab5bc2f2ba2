"""`fit`: a model, its hindsight and a verdict on both, from a log alone."""

from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces
from jax import Array

from coulda.episodes import EpisodeLog, StoredLog
from coulda.errors import CouldaError
from coulda.evaluation import Diagnostic
from coulda.evaluation.diagnostics import graded
from coulda.evaluation.markov import markov_diagnostic
from coulda.evaluation.model_checks import FEW_EXAMPLES
from coulda.evaluation.reading import generator
from coulda.fitting import judging
from coulda.fitting.confounding import confounding
from coulda.fitting.fitted import Fitted, Recipe
from coulda.fitting.folds import Folds, deal
from coulda.fitting.grounds import HiddenGrounds, Nearness, TableGrounds, VectorGrounds, between_members
from coulda.fitting.hidden import HiddenFit, fit_hidden
from coulda.fitting.memory import lasting_rewards, memory
from coulda.fitting.neural import NeuralFit, NeuralResult, fit_vectors
from coulda.fitting.sharing import shared_noise
from coulda.fitting.source import CrossFitted
from coulda.fitting.tabular import Counts, TabularFit, fit_table, novelty
from coulda.fitting.training import places_by_fold, rows_of, unseen
from coulda.fitting.vectors import FittedVectors
from coulda.hindsight import Exact
from coulda.noise import check_key
from coulda.pomdp import Episode, batched

FAR = 5
"""Steps of open-loop errors, beside 1 and all."""
OPEN_LOOP_EPISODES, OPEN_LOOP_DRAWS = 256, 16
"""Predictions are means of so many paths, which adds at most 3 % to their errors."""
SMALL_NOVELTY, LARGE_NOVELTY = 0.1, 0.3
"""Of transitions that only one fold has: about the share of another log that a table holds to be impossible."""


def fit(
    key: Array,
    log: EpisodeLog | StoredLog,
    recipe: Recipe,
    *,
    folder: Path | None = None,
    resume: bool = False,
    progress: bool = False,
) -> Fitted:
    """Fit a model to a log, without a simulator and without hidden states being told.

    Args:
        key: consumed.
        log: whoever made it. Its observations are the state (`TabularFit`, `NeuralFit`), or tell of it (`HiddenFit`).
        recipe: what kind of model, with its reparameterization by name.
        folder: where a training run keeps its checkpoints, so that Ctrl-C loses nothing; of networks only.
        resume: go on with the run in `folder`.
        progress: show a bar.
    """
    check_key(key)
    whole = log.read() if isinstance(log, StoredLog) else log
    if not len(whole):
        raise CouldaError("the log has no episodes; there is nothing to fit.")
    if isinstance(recipe, TabularFit):
        return _table(key, whole, recipe)
    if isinstance(recipe, NeuralFit):
        return _vectors(key, whole, recipe, folder, resume, progress)
    if isinstance(recipe, HiddenFit):
        found = fit_hidden(key, whole, recipe)
        grounds = HiddenGrounds(found.verdict, found.members)
        told = (*_told(whole), *found.summary)
        return Fitted(recipe, found.model, Exact(found.model), grounds, told, whole.fingerprint)  # pyright: ignore
    raise CouldaError(f"recipe is a {type(recipe).__name__}; give a TabularFit, a NeuralFit or a HiddenFit.")


def recipe_for(log: EpisodeLog | StoredLog) -> tuple[Recipe, str]:
    """The recipe for a log of which nothing more is known, and why.

    Its values are interventional, and do not need the mechanism to be right; what is said of single episodes does.
    """
    seen, done = log.schema.observation_space, log.schema.action_space
    if isinstance(seen, spaces.Discrete) and isinstance(done, spaces.Discrete):
        return TabularFit("gumbel_max"), "a table with Gumbel-max, since observations and actions are numbered"
    if isinstance(seen, spaces.Box) and len(seen.shape) == 1 and isinstance(done, spaces.Discrete | spaces.Box):
        shared = shared_noise(log.read() if isinstance(log, StoredLog) else log)
        if shared is not None:
            return NeuralFit("triangular"), f"networks with triangular noise, since {shared.sentence}"
        return NeuralFit("location_scale"), "networks with location-scale noise, since observations are vectors"
    fix = "numbers or vectors are needed."
    if isinstance(seen, spaces.Box) and not seen.shape:
        fix = "a measured number is a vector of one: call its column observation_0, or name several columns."
    raise CouldaError(f"no recipe fits observations in {seen} and actions in {done}; {fix}")


def _table(key: Array, log: EpisodeLog, recipe: TabularFit) -> Fitted:
    key_markov, key_own, key_hidden = jax.random.split(key, 3)
    model, counts = fit_table(log, recipe)
    _, fold = deal(log, recipe.folds)
    pairs, moves = novelty(log, fold)
    verdict = (
        _novelty(moves),
        *_markov(key_markov, log),
        *confounding(generator(key_hidden), log, fold),
        *(lasting_rewards(log, fold) if counts.varies else ()),
        *judging.own_policy(key_own, model, log),
        *only_action(counts.tried.sum(1), log),
    )
    return Fitted(
        recipe,
        model,
        Exact(model),
        TableGrounds(verdict, model, counts, recipe),
        (*_told(log), *_tried(counts, pairs, log)),
        log.fingerprint,
    )


def _novelty(share: float) -> Diagnostic:
    return Diagnostic(
        "novelty",
        share,
        graded(share, SMALL_NOVELTY, LARGE_NOVELTY),
        f"{share:.1%} of the logged transitions are in one fold of the log only: about as many of another log would "
        "be held to be impossible.",
    )


def _markov(key: Array, log: EpisodeLog) -> tuple[Diagnostic, ...]:
    """The test that fitted values are asked too."""
    if log.schema.last_observation == "repeated":
        return ()
    episodes = log.padded()
    live, action = np.asarray(episodes.live), np.asarray(episodes.action)
    done = log.schema.action_space
    assert isinstance(done, spaces.Discrete)
    last = np.arange(live.shape[1]) == (log.lengths - 1)[:, None]
    continues = live & ~(last & log.terminated[:, None])
    observed = np.asarray(episodes.observation).astype(int)
    reward = np.asarray(episodes.reward, float)
    return markov_diagnostic(generator(key), observed, action - int(done.start), reward, live, continues)


def only_action(taken: np.ndarray, log: EpisodeLog) -> tuple[Diagnostic, ...]:
    """A log with one action tells nothing of any other."""
    if (taken > 0).sum() != 1:
        return ()
    one = _called(log, int(np.flatnonzero(taken)[0]))
    sentence = f"Action {one} is the only one that was ever taken: the log tells nothing of any other."
    return (Diagnostic("actions", 1.0, "caution", sentence),)


def _called(log: EpisodeLog, action: int) -> str:
    """The label of an action, or its number."""
    names, space = log.schema.action_names, log.schema.action_space
    start = int(space.start) if isinstance(space, spaces.Discrete) else 0
    return names[action] if names else str(action + start)


def _told(log: EpisodeLog) -> tuple[str, ...]:
    cut = int((~log.terminated & (log.lengths < log.max_length)).sum())
    told = [f"The log has {len(log):,} episodes and {log.num_steps:,} steps, of at most {log.max_length}."]
    if cut:
        told.append(f"{cut:,} episodes were cut off; they tell of the steps that they have, and not of ends.")
    if log.schema.last_observation == "repeated":
        told.append("What was seen after last actions was not logged: last steps tell of rewards and ends only.")
    return tuple(told)


def _tried(counts: Counts, pairs: float, log: EpisodeLog) -> tuple[str, ...]:
    tried = counts.tried[:, : counts.seen]
    visited = tried.sum(0) > 0
    never, few = int((tried[:, visited] == 0).sum()), int(((tried > 0) & (tried < FEW_EXAMPLES)).sum())
    total = counts.actions * int(visited.sum())
    told = [
        f"{int(visited.sum())} of {counts.seen} observations were acted on.",
        f"Of {total} pairs with an action {never} were never tried, and lead to a place of their own.",
        f"{few} pairs were tried fewer than {FEW_EXAMPLES} times.",
        f"{pairs:.1%} of all steps do something that no other fold of the log does in the same place.",
    ]
    if (unused := np.flatnonzero(counts.tried.sum(1) == 0)).size:
        told.append(f"Never taken: action {', '.join(_called(log, int(a)) for a in unused)}.")
    rows = {(a, s) for a, s, _ in counts.place.tolist()}
    certain = len(rows) == len(counts.place)
    told.append("What follows is certain in every pair." if certain else "What follows is up to chance.")
    if counts.varies:
        told.append("Rewards vary where states and action are the same; the model pays their means.")
    paid = np.asarray(log.reward, float)[np.cumsum(log.lengths) - 1]
    if log.schema.last_observation == "repeated" and paid.any():
        told.append(
            f"Last steps pay {paid.mean():.3g} of the {log.episode_returns.mean():.3g} that an episode returns; at the "
            "horizon a table takes them to pay what earlier ones in the same place do. Log what was seen after them."
        )
    if counts.twins:
        told.append("Episodes end by chance: the same observation may be the last or not.")
    return tuple(told)


def _vectors(
    key: Array, log: EpisodeLog, recipe: NeuralFit, folder: Path | None, resume: bool, progress: bool
) -> Fitted:
    key_fit, key_noise, key_own = jax.random.split(key, 3)
    found = fit_vectors(key_fit, log, recipe, folder=folder, resume=resume, progress=progress)
    model, rng = found.model, generator(key_noise)
    names = log.schema.observation_names or tuple(f"dimension {j}" for j in range(model.size))
    noise, gain = _unseen(found, names)
    verdict = [judging.likelihood(gain, noise.episode)] if np.isfinite(noise.noise).any() else []
    verdict += [
        *judging.transforms(noise),
        *judging.independence(rng, noise, recipe.reparameterization == "triangular"),
        *memory(rng, noise, model.size),
    ]
    verdict += [*_open_loop(found, log), *judging.own_policy(key_own, model, log)]
    if isinstance(model.action_space, spaces.Discrete):
        taken = np.bincount(found.steps.action, minlength=int(model.action_space.n))
        verdict += only_action(taken, log)
    else:
        taken = np.stack([found.steps.action.min(0), found.steps.action.max(0)])
    near = Nearness.of(noise.inputs, model.size, isinstance(model.action_space, spaces.Discrete))
    grounds = VectorGrounds(tuple(verdict), model, _on_log(found), near, found.folds)
    source = CrossFitted(model, found.folds)
    return Fitted(recipe, model, source, grounds, (*_told(log), *_found(found, taken, names, log)), log.fingerprint)


def _unseen(found: NeuralResult, names: tuple[str, ...]) -> tuple[judging.Noise, np.ndarray]:
    """The noise of every step by the member that has not seen it, and how much likelier it is than by regression."""
    model, steps = found.model, found.steps
    rows = rows_of(model, steps, found.fold)
    places = places_by_fold(found.fold[steps.episode], model.num_members)
    at = jnp.asarray(places)
    own, linear = (unseen(model, members, rows, at) for members in (model.members, found.baseline))
    kept = places >= 0
    order = np.argsort(places[kept])
    loss, noise, left, other = (np.asarray(x, float)[kept][order] for x in (own.loss, own.noise, own.left, linear.loss))
    # Where what followed was not logged, the noise of the reward has that of the change in it.
    noise, left = (np.where(steps.followed[:, None], x, np.nan) for x in (noise, left))
    spread = np.sqrt(np.nansum(left**2, 0) / np.maximum(np.isfinite(left).sum(0), 1)).clip(max=1.0)
    chance = np.exp(-loss[:, -1])  # of what happened
    end = np.where(steps.judged & bool(model.ends), np.where(steps.ended, 1 - chance, chance - 1), np.nan)
    inputs = np.asarray(rows.inputs, float)
    judged = judging.Noise(inputs, noise, end, steps.episode, steps.time, (*names, "the reward"), spread)
    return judged, (other - loss).sum(1)


def _open_loop(found: NeuralResult, log: EpisodeLog) -> tuple[Diagnostic, ...]:
    model = found.model
    sample = log[:OPEN_LOOP_EPISODES]
    linear = eqx.tree_at(lambda m: m.members, model, found.baseline)
    far = {step: step for step in sorted({1, FAR, log.max_length}) if step <= log.max_length}
    episodes = sample.padded(log.max_length)
    own, other = (np.asarray(_paths(m, found.folds, episodes), float) for m in (model, linear))
    reached = np.asarray(sample.lengths) - (0 if log.schema.last_observation == "logged" else 1)

    squares = lambda apart, step: (apart[reached >= step, step] ** 2).mean(1)
    errors = {step: (squares(own, step), squares(other, step)) for step in far if (reached >= step).any()}
    return (judging.open_loop(errors),) if errors else ()


@eqx.filter_jit
def _paths(model: FittedVectors, folds: Folds, episodes: Episode) -> Array:
    """How far the mean path under logged actions is off, in spreads of states, `[N, T + 1, d]`."""
    noise = jax.random.normal(jax.random.key(0), (OPEN_LOOP_DRAWS, model.horizon, model.size))

    def one(episode: Episode) -> Array:
        start = model.initial({"first": episode.observation[0], "member": folds.of(episode)})

        def step(state: Any, inputs: tuple[Any, Array]) -> tuple[Any, Array]:
            action, u = inputs
            state = model.transition(state, action, {"state": u, "reward": jnp.zeros(()), "end": jnp.ones(())})
            return state, state.seen

        paths = jax.vmap(lambda u: jax.lax.scan(step, start, (episode.action, u))[1])(noise)
        path = jnp.concatenate([start.seen[None], jnp.mean(paths, 0)])
        return (path - episode.observation) / model.scales.spread[None]

    return batched(one, episodes)


def _on_log(found: NeuralResult) -> float:
    """The variance between members where the log is, in variances of the noise."""
    steps, model = found.steps, found.model
    chosen = np.linspace(0, len(steps.reward) - 1, min(len(steps.reward), 4096)).astype(int)
    chosen = chosen[steps.followed[chosen]]
    if not chosen.size:
        return 0.0
    start = int(model.action_space.start) if isinstance(model.action_space, spaces.Discrete) else 0
    state, following = (jnp.asarray(x[chosen], jnp.float32) for x in (steps.state, steps.following))
    action = jnp.asarray(steps.action[chosen] + start if start else steps.action[chosen])
    return float(np.mean(np.asarray(_between_at(model, state, action, following))))


@eqx.filter_jit
def _between_at(model: FittedVectors, state: Array, action: Array, following: Array) -> Array:
    def one(step: tuple[Array, Array, Array]) -> Array:
        seen, act, after = step
        return between_members(model, seen, act, model.change(seen, after))

    return batched(one, (state, action, following))


def _found(found: NeuralResult, taken: np.ndarray, names: tuple[str, ...], log: EpisodeLog) -> tuple[str, ...]:
    model, steps = found.model, found.steps
    noisy, every = np.asarray(model.noisy), np.concatenate([steps.state, steps.following])
    still = [name for name, column in zip(names, every.T, strict=True) if np.ptp(column) == 0]
    certain = [name for name, varies in zip(names, noisy, strict=False) if not varies and name not in still]
    told = [f"{model.num_members} members of two layers, {found.epochs} epochs."]
    if still:
        told.append(f"What never changes: {', '.join(still)}; nothing is known of other values.")
    if certain:
        told.append(f"Without noise, linear in what came before: {', '.join(certain)}.")
    told.append("Rewards vary." if noisy[-1] else "Rewards have no noise, and are linear in the step.")
    told.append(
        "Episodes end by chance, given the step." if bool(model.ends) else "No episode ends before the horizon."
    )
    if isinstance(model.action_space, spaces.Discrete):
        few = [f"{_called(log, a)} ({n} times)" for a, n in enumerate(taken) if n < FEW_EXAMPLES]
        told += [f"Hardly taken: action {', '.join(few)}."] if few else []
    else:
        limits = ", ".join(f"{low:.3g} to {high:.3g}" for low, high in taken.T)
        told.append(f"Actions were taken from {limits}.")
    low, high = steps.state.min(0), steps.state.max(0)
    seen = (f"{name} from {a:.3g} to {b:.3g}" for name, a, b in zip(names, low, high, strict=True))
    told.append(f"Seen were {', '.join(seen)}.")
    return tuple(told)

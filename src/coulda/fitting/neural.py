"""`NeuralFit`: a log of observed vectors becomes a model, an ensemble of networks that each leave out a fold."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces
from jax import Array

from coulda.episodes import EpisodeLog
from coulda.episodes.spaces import HashableSpace
from coulda.errors import CouldaError
from coulda.fitting.folds import Folds, deal
from coulda.fitting.steps import Steps, steps_of
from coulda.fitting.training import BATCH, MOST_HELD_OUT, Epoch, places_by_fold, regressed, rows_of
from coulda.fitting.vectors import LARGE_CHANGE, FittedVectors, Member, Scales, linear_features, masks, mechanism_for
from coulda.scales import spread_of
from coulda.trainer import TrainerConfig, train

MOST_FIRST = 10_000
"""First states that a model keeps."""
EXACTLY = 1e-4
"""What a linear regression may leave of a dimension that has no noise, of the largest change: rounding, and no more."""

VectorReparameterization = Literal["additive", "location_scale", "triangular"]


@dataclass(frozen=True)
class NeuralFit:
    """An ensemble of networks for logs of observed vectors, with discrete or continuous actions.

    Member k has never seen fold k, by which it is stopped, and whose noise it infers.
    """

    reparameterization: VectorReparameterization
    """How noise moves the state; see `coulda.fitting.vectors`. They agree on nothing beyond what they can hold, and
    differ on counterfactuals, so there is no default."""
    folds: int = 5
    """K: folds, and members."""
    updates: int = 4000
    """Of each member, at most; and at least 20 epochs, where the log is large."""
    order: tuple[int, ...] | None = None
    """In which "triangular" draws the dimensions; that of the columns by default."""

    def __post_init__(self) -> None:
        """Names are checked before anything is read."""
        if self.reparameterization not in get_args(VectorReparameterization):
            raise CouldaError(
                f"reparameterization is {self.reparameterization!r}; name one of "
                f"{', '.join(map(repr, get_args(VectorReparameterization)))}. They differ on counterfactuals, so "
                "there is no default."
            )

    def epochs(self, num_steps: int) -> int:
        """Over a log of so many steps."""
        return int(np.clip(self.updates // max(1, num_steps // BATCH), 20, 400))


@dataclass(frozen=True)
class NeuralResult:
    """What came of it, before it is judged."""

    model: FittedVectors
    baseline: Member
    """Linear regressions, one for each fold, in the same terms."""
    steps: Steps
    folds: Folds
    fold: np.ndarray
    """Of each episode."""
    epochs: int


def fit_vectors(
    key: Array, log: EpisodeLog, recipe: NeuralFit, *, folder: Path | None, resume: bool, progress: bool
) -> NeuralResult:
    """Train the ensemble. Consumes `key`."""
    steps = steps_of(log)
    folds, fold = deal(log, recipe.folds)
    key_first, key_start, key_train = jax.random.split(key, 3)
    model = blank(log, steps, recipe, key_first)
    rows = rows_of(model, steps, fold)
    baseline, left = regressed(model, rows, key_start)
    largest = np.abs(np.nan_to_num(np.asarray(rows.change))).max(initial=1.0)
    noisy = np.abs(np.asarray(left)).max(0) > EXACTLY * largest
    model = eqx.tree_at(lambda m: (m.members, m.noisy), model, (baseline, jnp.asarray(noisy)))
    held_out = jnp.asarray(places_by_fold(fold[steps.episode], recipe.folds, MOST_HELD_OUT))
    epochs = recipe.epochs(len(steps.reward))
    epoch = Epoch(model, rows, held_out, epochs, max(5, epochs // 4))
    if not noisy.any() and not bool(model.ends):
        return NeuralResult(model, baseline, steps, folds, fold, 0)
    trained = train(
        key_train,
        epoch,
        epoch.start(baseline),
        TrainerConfig(epochs, log_every=max(1, epochs // 20), checkpoint_every=max(1, epochs // 5), keep_last=1),
        folder=folder,
        settings={"recipe": recipe, "log": log.fingerprint},
        resume=resume,
        progress=progress,
    )
    trained.check_finished()
    model = eqx.tree_at(lambda m: m.members, model, trained.state.best)
    return NeuralResult(model, baseline, steps, folds, fold, int(trained.state.epoch))


def blank(log: EpisodeLog, steps: Steps, recipe: NeuralFit, key: Array) -> FittedVectors:
    """The model before its members are trained: scales, first states, and what ends."""
    size = steps.state.shape[1]
    order = tuple(range(size)) if recipe.order is None else recipe.order
    if sorted(order) != list(range(size)):
        raise CouldaError(f"order is {order}; it must name each of the {size} dimensions 0 … {size - 1} once.")
    first = np.asarray(log.observation, np.float32)[log.starts + np.arange(len(log))]
    if len(first) > MOST_FIRST:
        first = first[np.asarray(jax.random.permutation(key, len(first)))[:MOST_FIRST]]
    ends = bool((steps.ended & steps.judged).any())
    return skeleton(
        size,
        log.schema.action_space,
        recipe,
        log.max_length,
        order,
        _scales(steps, log.schema.action_space),
        first,
        ends,
    )


def skeleton(
    size: int,
    actions: Any,
    recipe: NeuralFit,
    horizon: int,
    order: tuple[int, ...],
    scales: Scales,
    first: np.ndarray,
    ends: bool,
) -> FittedVectors:
    """A model whose members say nothing, of the right shapes."""
    num_inputs = size + (int(actions.n) if isinstance(actions, spaces.Discrete) else int(np.prod(actions.shape)))
    nothing = Member([], [], jnp.zeros((0, 0)), jnp.zeros(0), jnp.zeros(recipe.folds))
    model = FittedVectors(
        members=nothing,
        scales=scales,
        first=jnp.asarray(first),
        noisy=jnp.ones(size + 1, bool),
        ends=jnp.asarray(ends),
        order=order,
        horizon=horizon,
        reparameterization=recipe.reparameterization,
        actions=HashableSpace(actions),
        action_mechanism=mechanism_for(actions),
    )
    shapes = [mask.shape for mask in masks(model, num_inputs)]
    features = jax.eval_shape(lambda x, y: linear_features(model, x, y), jnp.zeros(num_inputs), jnp.zeros(size)).shape[
        0
    ]
    zeros = lambda *shape: jnp.zeros((recipe.folds, *shape))
    weights, biases = [zeros(*shape) for shape in shapes], [zeros(shape[0]) for shape in shapes]
    members = Member(weights, biases, zeros(size + 1, features), zeros(size + 1), zeros())
    return eqx.tree_at(lambda m: m.members, model, members)


def _scales(steps: Steps, space: Any) -> Scales:
    every = np.concatenate([steps.state, steps.following])
    spread = spread_of(every)
    change = spread_of(((steps.following - steps.state) / spread)[steps.followed])
    low, high = every.min(0), every.max(0)
    room = LARGE_CHANGE * (high - low)
    if isinstance(space, spaces.Discrete):
        center, width = np.zeros(int(space.n)), np.ones(int(space.n))
    else:
        center, width = steps.action.mean(0), spread_of(steps.action)
    numbers = (every.mean(0), spread, change, low - room, high + room, center, width)
    reward = steps.reward.mean(), spread_of(steps.reward[:, None])[0]
    return Scales(*(jnp.asarray(x, jnp.float32) for x in (*numbers, *reward)))

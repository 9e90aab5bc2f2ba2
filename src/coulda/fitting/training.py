"""The training of an ensemble, in one program: every member on all folds but its own. A step is an epoch."""

from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from coulda.fitting.steps import Steps
from coulda.fitting.vectors import WIDTH, FittedVectors, Member, likely_change, linear_features, masks, said
from coulda.trainer import descend, first_state

BATCH = 512
LEARNING_RATE = 2e-3
MOST_HELD_OUT = 4096
"""Steps of its own fold that a member is judged by after each epoch."""
TEMPER = 0.5
"""The β of Seitzer et al. (2022): log-densities of noise are weighted by σ^2β. With 0 only what is foreseen best is
learned (in scope-rl's BasicGym, whose moves are without noise, errors are two to four times those with ½, and unseen
steps less likely); with 1 means are fitted by least squares."""
RIDGE = 1e-6
"""Of linear regressions on standardized numbers, relative to the number of steps."""


class Rows(eqx.Module):
    """The steps of a log in the terms of the networks, `[n, ...]` each."""

    inputs: Array
    change: Array
    """NaN where what followed was not logged: of such a step the reward and the end are learned, and no change."""
    reward: Array
    ended: Array
    judged: Array
    fold: Array
    complete: bool = eqx.field(static=True)
    """Whether it was logged after every step."""


class Training(eqx.Module):
    """What passes from one epoch to the next."""

    members: Member
    optimizer: Any
    best: Member
    best_loss: Array
    """Of each member on the fold that it has not seen, `[K]`."""
    stale: Array
    """Epochs since any member became better."""
    epoch: Array


def rows_of(model: FittedVectors, steps: Steps, fold: np.ndarray) -> Rows:
    """The steps, standardized."""
    scales, space = model.scales, model.actions.value
    start = int(space.start) if hasattr(space, "start") else 0  # pyright: ignore[reportAttributeAccessIssue]
    state, action = jnp.asarray(steps.state, jnp.float32), jnp.asarray(steps.action + start if start else steps.action)
    following = jnp.asarray(np.where(steps.followed[:, None], steps.following, np.nan), jnp.float32)
    inputs, change = _standardized(model, state, action, following)
    reward = (jnp.asarray(steps.reward, jnp.float32) - scales.reward_center) / scales.reward_spread
    ended, judged = jnp.asarray(steps.ended, jnp.float32), jnp.asarray(steps.judged, jnp.float32)
    where = jnp.asarray(fold[steps.episode], jnp.int32)
    return Rows(inputs, change, reward, ended, judged, where, bool(steps.followed.all()))


@eqx.filter_jit
def _standardized(model: FittedVectors, state: Array, action: Array, following: Array) -> tuple[Array, Array]:
    return jax.vmap(model.inputs)(state, action), jax.vmap(model.change)(state, following)


@eqx.filter_jit
def regressed(model: FittedVectors, rows: Rows, key: Array) -> tuple[Member, Array]:
    """Members that are linear regressions, `[K]`, and what one that saw everything leaves of all steps, `[n, d + 1]`.

    The state is regressed on what came before, the reward on the change too; the networks add nothing yet.
    """
    size, known = model.size, jnp.isfinite(rows.change).all(1)
    change = jnp.where(known[:, None], rows.change, 0.0)
    features = jax.vmap(partial(linear_features, model))(rows.inputs, change)
    before = features[:, : features.shape[1] - size]

    def solve(weight: Array) -> tuple[Array, Array, Array]:
        state = _least_squares(before, change, jnp.where(known, weight, 0.0))
        likely = jnp.where(known[:, None], change, before @ state)
        features = jnp.concatenate([before, likely], 1)
        paid = _least_squares(features, rows.reward[:, None], weight)
        linear = jnp.concatenate([jnp.pad(state.T, ((0, 0), (0, size))), paid.T])
        left = jnp.concatenate([likely, rows.reward[:, None]], 1) - features @ linear.T
        counts = jnp.where(_of_values(known, size), weight[:, None], 0.0)
        return linear, jnp.sqrt(jnp.sum(counts * left**2, 0) / jnp.maximum(jnp.sum(counts, 0), 1.0)), left

    found = [solve(jnp.where(rows.fold != k, 1.0, 0.0)) for k in range(model.num_members)]
    linear, left = (jnp.stack([each[i] for each in found]) for i in (0, 1))
    _, _, everywhere = solve(jnp.ones(len(known)))
    share = jnp.stack(
        [jnp.sum(jnp.where(rows.fold != k, rows.ended * rows.judged, 0.0)) for k in range(model.num_members)]
    )
    share = (share + 0.5) / (jnp.sum(rows.judged) * (1 - 1 / model.num_members) + 1)
    made = jax.vmap(lambda key: _network(key, model, rows.inputs.shape[1]))(jax.random.split(key, model.num_members))
    weights, biases = made
    log_scale = jnp.log(jnp.maximum(left, 1e-6))
    members = Member(weights, biases, linear, log_scale, jnp.log(share) - jnp.log1p(-share))
    return members, everywhere


def _of_values(known: Array, size: int) -> Array:
    """Whether changes, which are or are not `known` `[n]`, and the reward, which always is, are there, `[n, d + 1]`."""
    return jnp.concatenate([jnp.tile(known[:, None], size), jnp.ones((len(known), 1), bool)], 1)


def _least_squares(features: Array, targets: Array, weight: Array) -> Array:
    """Weights `[F, y]` of a regression with a small ridge."""
    gram = jnp.einsum("n,nf,ng->fg", weight, features, features)
    ridge = (RIDGE * jnp.sum(weight) + 1e-6) * jnp.eye(len(gram))
    return jnp.linalg.solve(gram + ridge, jnp.einsum("n,nf,ny->fy", weight, features, targets))


def _network(key: Array, model: FittedVectors, inputs: int) -> tuple[list[Array], list[Array]]:
    """Weights by how many a unit has; those of the last layer are zero."""
    shapes = [mask.shape for mask in masks(model, inputs)]
    counts = [np.maximum(mask.sum(1, keepdims=True), 1.0) for mask in masks(model, inputs)]
    keys = jax.random.split(key, 2)
    weights = [jax.random.normal(k, s) / jnp.sqrt(c) for k, s, c in zip(keys, shapes[:2], counts[:2], strict=True)]
    return [*weights, jnp.zeros(shapes[2])], [jnp.zeros(WIDTH), jnp.zeros(WIDTH), jnp.zeros(shapes[2][0])]


class Judged(NamedTuple):
    """What a member makes of steps, `[n, ...]` each."""

    loss: Array
    """Minus the log-density, `[n, d + 2]`: of the state's dimensions, the reward and the end."""
    noise: Array
    """`[n, d + 1]`; NaN where nothing was logged, and where there is none."""
    left: Array
    """What the mean leaves, in spreads of changes and of rewards, `[n, d + 1]`; NaN likewise."""
    scale: Array
    """Of the noise, `[n, d + 1]`."""


def judged(member: Member, model: FittedVectors, rows: Rows) -> Judged:
    """Of all steps."""
    known = jnp.isfinite(rows.change).all(1, keepdims=True)
    change = rows.change
    if not rows.complete:
        likely = jax.vmap(partial(likely_change, member, model))(rows.inputs)
        change = jnp.where(known, change, jax.lax.stop_gradient(likely))
    heads = jax.vmap(lambda x, y: said(member, model, x, y))(rows.inputs, change)
    values = jnp.concatenate([change, rows.reward[:, None]], 1)
    left = values - heads.mean
    noise = left * jnp.exp(-heads.log_scale)
    density = -0.5 * noise**2 - heads.log_scale - 0.5 * jnp.log(2 * jnp.pi)
    there = model.noisy[None] & _of_values(known[:, 0], model.size)
    density = jnp.where(there, density, 0.0)
    log_odds = jnp.where(rows.ended > 0, -jax.nn.softplus(-heads.end), -jax.nn.softplus(heads.end))
    ends = jnp.where(model.ends, log_odds * rows.judged, 0.0)
    loss = -jnp.concatenate([density, ends[:, None]], 1)
    noise, left = (jnp.where(there, x, jnp.nan) for x in (noise, left))
    return Judged(loss, noise, left, jnp.exp(heads.log_scale))


class Epoch(eqx.Module):
    """An epoch of all members, a step of the trainer; after `patience` of them without a better member, nothing."""

    model: FittedVectors
    rows: Rows
    held_out: Array
    """Steps of each member's own fold, `[K, V]`."""
    epochs: int = eqx.field(static=True)
    patience: int = eqx.field(static=True)

    @property
    def updates(self) -> int:
        """In an epoch."""
        return max(1, self.rows.reward.shape[0] // BATCH)

    @property
    def optimizer(self) -> optax.GradientTransformation:
        """Adam, slower to the end."""
        schedule = optax.cosine_decay_schedule(LEARNING_RATE, self.epochs * self.updates, 0.02)
        return optax.chain(optax.clip_by_global_norm(5.0), optax.adamw(schedule, weight_decay=1e-4))

    def start(self, members: Member) -> Training:
        """Before the first epoch."""
        optimizer = jax.vmap(lambda member: first_state(self.optimizer, _free(member)))(members)
        return Training(members, optimizer, members, _held_out_loss(self, members), jnp.int32(0), jnp.int32(0))

    def __call__(self, key: Array, state: Training) -> tuple[Training, dict[str, Array]]:
        """The next epoch, and how well the best members do on what they have not seen."""
        return _epoch(self, key, state)


@eqx.filter_jit
def _epoch(epoch: Epoch, key: Array, state: Training) -> tuple[Training, dict[str, Array]]:
    def go(state: Training) -> Training:
        size = epoch.rows.reward.shape[0]
        order = jax.random.permutation(key, size)
        places = jnp.resize(order, (epoch.updates, min(BATCH, size)))

        def update(carry: tuple[Member, Any], place: Array) -> tuple[tuple[Member, Any], None]:
            batch = jax.tree.map(lambda leaf: leaf[place], epoch.rows)
            numbers = jnp.arange(epoch.model.num_members)
            return jax.vmap(partial(_update, epoch, batch))(*carry, numbers), None

        (members, optimizer), _ = jax.lax.scan(update, (state.members, state.optimizer), places)
        loss = _held_out_loss(epoch, members)
        better = loss < state.best_loss
        pick = lambda new, old: jnp.where(better.reshape(better.shape + (1,) * (new.ndim - 1)), new, old)
        best = jax.tree.map(pick, members, state.best)
        stale = jnp.where(better.any(), 0, state.stale + 1).astype(jnp.int32)
        return Training(members, optimizer, best, jnp.where(better, loss, state.best_loss), stale, state.epoch + 1)

    state = jax.lax.cond(state.stale >= epoch.patience, lambda state: state, go, state)
    return state, {"loss": jnp.mean(state.best_loss), "epoch": state.epoch.astype(float)}


def _update(epoch: Epoch, batch: Rows, member: Member, optimizer: Any, number: Array) -> tuple[Member, Any]:
    weight = (batch.fold != number).astype(jnp.float32)

    def loss(free: Member) -> Array:
        found = judged(eqx.combine(free, member), epoch.model, batch)
        tempered = jnp.pad(jax.lax.stop_gradient(found.scale) ** (2 * TEMPER), ((0, 0), (0, 1)), constant_values=1.0)
        return jnp.sum(weight[:, None] * tempered * found.loss) / jnp.maximum(jnp.sum(weight), 1.0)

    free = _free(member)
    free, optimizer = descend(epoch.optimizer, jax.grad(loss)(free), optimizer, free)
    return eqx.combine(free, member), optimizer


def _free(member: Member) -> Member:
    """What is trained: the network; what was regressed stays."""
    nothing = jax.tree.map(lambda _: False, member)
    chosen = eqx.tree_at(lambda m: (m.weights, m.biases), nothing, ([True] * 3, [True] * 3))
    return eqx.filter(member, chosen)


def _held_out_loss(epoch: Epoch, members: Member) -> Array:
    """The loss of each member on its own fold, `[K]`."""

    def one(member: Member, place: Array) -> Array:
        found = judged(member, epoch.model, jax.tree.map(lambda leaf: leaf[jnp.maximum(place, 0)], epoch.rows)).loss
        weight = (place >= 0).astype(jnp.float32)
        return jnp.sum(weight[:, None] * found) / jnp.sum(weight)

    return jax.vmap(one)(members, epoch.held_out)


@eqx.filter_jit
def unseen(model: FittedVectors, members: Member, rows: Rows, places: Array) -> Judged:
    """The steps at `places` `[K, V]`, -1 where there is none, by the member that has not seen them."""
    at = lambda place: jax.tree.map(lambda x: x[jnp.maximum(place, 0)], rows)
    return jax.vmap(lambda member, place: judged(member, model, at(place)))(members, places)


def places_by_fold(fold: np.ndarray, count: int, most: int | None = None) -> np.ndarray:
    """The steps of each fold, `[K, V]`, filled up with -1."""
    found = [np.flatnonzero(fold == k)[:most] for k in range(count)]
    width = max(len(places) for places in found)
    return np.stack([np.pad(places, (0, width - len(places)), constant_values=-1) for places in found])

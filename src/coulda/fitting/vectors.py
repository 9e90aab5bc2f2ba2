"""`FittedVectors`: an observed vector state whose next one is drawn by an ensemble of networks.

Member m predicts the change of a standardized state: y_j = μ_j(s, a, y_<j) + σ_j(s, a, y_<j) u_j, with standard normal
u. What a dimension may see of the others' changes is the reparameterization:

| name             | μ_j, σ_j see             | σ_j          |
|------------------|--------------------------|--------------|
| `additive`       | s, a                     | one number   |
| `location_scale` | s, a                     | of (s, a)    |
| `triangular`     | s, a and y_1 … y_{j-1}   | of all these |

The reward, with noise of its own, and the end, by chance, see all of y. Dimensions that are a linear function of what
came before have no noise. The first state is one of the log's. Which member draws is part of the noise of the first
state: all of an episode is drawn by one, so that what the log does not tell stays in the estimate.
"""

from typing import Any, NamedTuple

import equinox as eqx
import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from coulda.episodes.spaces import HashableSpace
from coulda.noise import Categorical, Independent, NoiseDistribution, Normal, Uniform
from coulda.pomdp import POMDP, ActionMechanism, LocationScaleAction, choice

WIDTH = 128
LEAST_LOG_SCALE, MOST_LOG_SCALE = -6.0, 1.5
"""Of standardized changes: a four-hundredth of their spread, and more than four times it."""
LARGE_CHANGE = 0.5
"""How far beyond all that was logged a state may go, in ranges of the log; networks know nothing out there."""
MOST_PRODUCTS = 256
"""Of states with actions in the linear part."""


class VectorState(NamedTuple):
    """What is seen, and what the step before it paid and ended; and who draws what comes."""

    seen: Array
    paid: Array
    over: Array
    member: Array


class Resampled(NoiseDistribution):
    """One of the values `[n, ...]`, each as likely."""

    values: Array

    def sample(self, key: Array) -> Array:
        """Draw one."""
        return self.values[jax.random.randint(key, (), 0, self.values.shape[0])]


class Scales(eqx.Module):
    """What makes numbers of the log of size one."""

    center: Array
    """Of states, `[d]`."""
    spread: Array
    change: Array
    """The spread of changes of standardized states, `[d]`."""
    low: Array
    """Of states, `[d]`; beyond `LARGE_CHANGE` ranges of the log nothing goes."""
    high: Array
    action_center: Array
    """`[k]`; of discrete actions 0 and 1."""
    action_spread: Array
    reward_center: Array
    reward_spread: Array


class Heads(NamedTuple):
    """What is said of the next state, the reward (the last entry) and the end."""

    mean: Array
    """`[d + 1]`."""
    log_scale: Array
    """`[d + 1]`."""
    end: Array
    """A logit."""


class Member(eqx.Module):
    """One network of two hidden layers whose units see as much of the change as the outputs they serve may see.

    Its predictions are those of a linear regression, and what the network adds.
    """

    weights: list[Array]
    biases: list[Array]
    linear: Array
    """`[d + 1, F]`: of the state's changes and the reward."""
    log_scale: Array
    """`[d + 1]`: of what the linear regression leaves."""
    base: Array
    """The logit of an end."""


class FittedVectors(POMDP):
    """A model of observed vectors that was fitted to a log; made by `fit` with a `NeuralFit`."""

    members: Member
    """Stacked, `[K, ...]`."""
    scales: Scales
    first: Array
    """First states of the log, `[n, d]`."""
    noisy: Array
    """Which dimensions, and at last whether rewards, have noise, `[d + 1]`."""
    ends: Array
    """Whether episodes end before the horizon."""
    order: tuple[int, ...] = eqx.field(static=True)
    """In which the dimensions are drawn."""
    horizon: int = eqx.field(static=True)
    reparameterization: str = eqx.field(static=True)
    actions: HashableSpace = eqx.field(static=True)
    action_mechanism: ActionMechanism

    @property
    def size(self) -> int:
        """The number of dimensions, d."""
        return self.first.shape[1]

    @property
    def num_members(self) -> int:
        """K."""
        return self.members.base.shape[0]

    @property
    def observation_space(self) -> gymnasium.spaces.Box:
        """R^d."""
        return gymnasium.spaces.Box(-np.inf, np.inf, (self.size,), np.float32)

    @property
    def action_space(self) -> gymnasium.Space:
        """The log's."""
        return self.actions.value

    @property
    def initial_noise(self) -> Independent:
        """The first state itself, and the member."""
        return Independent({"first": Resampled(self.first), "member": Categorical(logits=jnp.zeros(self.num_members))})

    @property
    def transition_noise(self) -> Independent:
        """Of the state's dimensions, of the reward, and of the end."""
        return Independent({"state": Normal(shape=(self.size,)), "reward": Normal(shape=()), "end": Uniform()})

    def initial(self, u: dict[str, Array]) -> VectorState:
        """One of the log's first states."""
        return VectorState(u["first"], jnp.zeros(()), jnp.zeros((), bool), u["member"].astype(jnp.int32))

    def transition(self, state: VectorState, action: Any, u: dict[str, Array]) -> VectorState:
        """The changes in their order, then the reward and the end."""
        inputs = self.inputs(state.seen, action)
        change = self._drawn(state.member, inputs, u["state"])
        heads = self.heads(state.member, inputs, change)
        paid = heads.mean[-1] + jnp.where(self.noisy[-1], jnp.exp(heads.log_scale[-1]) * u["reward"], 0.0)
        over = self.ends & (u["end"] < jax.nn.sigmoid(heads.end))
        paid = self.scales.reward_center + self.scales.reward_spread * paid
        return VectorState(self._moved(state.seen, change), paid, over, state.member)

    def reward(self, state: VectorState, action: Any, next_state: VectorState) -> Array:  # noqa: ARG002
        """What the step paid."""
        return next_state.paid

    def observe(self, state: VectorState, u: Any) -> Array:  # noqa: ARG002
        """The vector."""
        return state.seen

    def terminal(self, state: VectorState) -> Array:
        """Whether the step before was the last."""
        return state.over

    def transition_posterior(
        self, member: Array, seen: Array, action: Any, step: tuple[Array, Array, Array], fresh: dict[str, Array]
    ) -> dict[str, Array]:
        """The noise of a logged step under a member; `step` is what followed, the reward and whether it was the end.

        Where there is no noise, and of what did not follow (NaN), it stays fresh.
        """
        following, reward, ended = step
        inputs, change = self.inputs(seen, action), self.change(seen, following)
        heads = self.heads(member, inputs, jnp.where(jnp.isfinite(change), change, 0.0))
        paid = (reward - self.scales.reward_center) / self.scales.reward_spread
        values = jnp.append(change, paid)
        noise = (values - heads.mean) / jnp.exp(heads.log_scale)
        noise = jnp.where(self.noisy & jnp.isfinite(noise), noise, jnp.append(fresh["state"], fresh["reward"]))
        likely = jax.nn.sigmoid(heads.end)
        # Off the ends of the interval, where rounding could change what happened.
        within = jnp.clip(fresh["end"], 1e-5, 1 - 1e-5)
        end = jnp.where(ended, within * likely, likely + within * (1 - likely))
        return {"state": noise[:-1], "reward": noise[-1], "end": jnp.where(self.ends, end, fresh["end"])}

    def inputs(self, seen: Array, action: Any) -> Array:
        """Standardized state and action, `[d + k]`."""
        scales = self.scales
        return jnp.concatenate([(seen - scales.center) / scales.spread, encoded(self.actions.value, action, scales)])

    def change(self, seen: Array, following: Array) -> Array:
        """The standardized change of a state, `[d]`."""
        return (following - seen) / self.scales.spread / self.scales.change

    def heads(self, member: Array, inputs: Array, change: Array) -> Heads:
        """What one member says. All are asked and one is taken: that is one product of matrices for many scenarios."""
        every = jax.vmap(lambda one: said(one, self, inputs, change))(self.members)
        return jax.tree.map(lambda leaf: jnp.tensordot(_one_hot(member, self.num_members), leaf, 1), every)

    def _drawn(self, member: Array, inputs: Array, noise: Array) -> Array:
        def one(change: Array) -> Array:
            heads = self.heads(member, inputs, change)
            scale = jnp.where(self.noisy[:-1], jnp.exp(heads.log_scale[:-1]), 0.0)
            return heads.mean[:-1] + scale * noise

        change = one(jnp.zeros(self.size))
        if self.reparameterization != "triangular":
            return change
        # A pass more for every dimension: after j of them the first j + 1 are as they shall be.
        return jax.lax.fori_loop(1, self.size, lambda _, before: one(before), change)

    def _moved(self, seen: Array, change: Array) -> Array:
        scales = self.scales
        return jnp.clip(seen + scales.spread * scales.change * change, scales.low, scales.high)


def _one_hot(member: Array, size: int) -> Array:
    return (jnp.arange(size) == member).astype(jnp.float32)


def encoded(space: gymnasium.Space, action: Any, scales: Scales) -> Array:
    """An action as numbers, `[k]`: one-hot, or standardized."""
    if isinstance(space, gymnasium.spaces.Discrete):
        return jax.nn.one_hot(action - int(space.start), int(space.n))
    return (jnp.ravel(action) - scales.action_center) / scales.action_spread


def mechanism_for(space: gymnasium.Space) -> ActionMechanism:
    """How actions are drawn: Gumbel-max, or mean + scale · u."""
    if isinstance(space, gymnasium.spaces.Discrete):
        return choice("gumbel_max", int(space.n))
    assert space.shape is not None
    return LocationScaleAction(space.shape)


def visible(model_size: int, order: tuple[int, ...], reparameterization: str) -> np.ndarray:
    """How many of the ordered changes each dimension may see, the reward and the end at last, `[d + 2]`."""
    rank = np.argsort(order) if reparameterization == "triangular" else np.zeros(model_size, int)
    return np.append(rank, [model_size, model_size])


def masks(model: FittedVectors, inputs: int) -> list[np.ndarray]:
    """Which weights of the three layers are there: 1 where a unit may see what the weight brings."""
    size, seen = model.size, visible(model.size, model.order, model.reparameterization)
    rank = np.argsort(model.order)
    # Each output has the same share of the units.
    units = np.sort(seen[:-1][np.arange(WIDTH) % (size + 1)])
    of_inputs = np.concatenate([np.ones((WIDTH, inputs)), rank[None, :] < units[:, None]], 1)
    outputs = np.concatenate([seen[:-1], seen[:-1], seen[-1:]])
    between = units[None, :] <= units[:, None]
    return [x.astype(np.float32) for x in (of_inputs, between, units[None, :] <= outputs[:, None])]


def linear_features(model: FittedVectors, inputs: Array, change: Array) -> Array:
    """What the linear part sees, `[F]`: state, action and a one; with discrete actions a state for each; the change."""
    size = model.size
    seen, done, one = inputs[:size], inputs[size:], jnp.ones(1)
    if isinstance(model.action_space, gymnasium.spaces.Discrete) and done.shape[0] * (size + 1) <= MOST_PRODUCTS:
        before = jnp.outer(done, jnp.concatenate([seen, one])).ravel()
    else:
        before = jnp.concatenate([seen, done, one])
    return jnp.concatenate([before, change])


def said(member: Member, model: FittedVectors, inputs: Array, change: Array) -> Heads:
    """What a member says of a step."""
    size = model.size
    layer, *others = zip(member.weights, member.biases, masks(model, inputs.shape[0]), strict=True)
    hidden = _dense(layer, jnp.concatenate([inputs, change]))
    for layer in others:
        hidden = _dense(layer, jax.nn.silu(hidden))
    # Regressions of the state do not see the change: their weights of it are zero.
    mean = member.linear @ linear_features(model, inputs, change)
    determined = ~model.noisy
    mean = mean + jnp.where(determined, 0.0, hidden[: size + 1])
    log_scale = member.log_scale
    if model.reparameterization != "additive":
        log_scale = log_scale + hidden[size + 1 : -1]
    else:
        log_scale = log_scale + member.biases[-1][size + 1 : -1]
    return Heads(mean, jnp.clip(log_scale, LEAST_LOG_SCALE, MOST_LOG_SCALE), member.base + hidden[-1])


def likely_change(member: Member, model: FittedVectors, inputs: Array) -> Array:
    """The means of the changes in their order, each given the means before it, `[d]`."""
    size = model.size
    likely = said(member, model, inputs, jnp.zeros(size)).mean[:-1]
    for _ in range(size - 1 if model.reparameterization == "triangular" else 0):
        likely = said(member, model, inputs, likely).mean[:-1]
    return likely


def _dense(layer: tuple[Array, Array, np.ndarray], inputs: Array) -> Array:
    weights, bias, mask = layer
    return (weights * mask) @ inputs + bias

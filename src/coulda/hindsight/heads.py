"""`Head`: a distribution of a code given what is known: q(code | context), number by number.

Atoms come first, each by logits that are added to its prior's, then the normal numbers, each by a mixture of Gaussians;
every number is given all before it, so that what hangs together, bends or has several modes is learned. Before it
learns, it is the prior; `with_line` lets it begin at the linear regression of the numbers on what is known.
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.scipy.special import logsumexp

from coulda.hindsight.coding import Code
from coulda.networks import Dense
from coulda.scales import normal_quantile

SPREAD = 0.5
"""Of the components' first means, in those of the quantiles of a standard normal: so much apart that they learn
different things, and together still standard normal to 1e-4 nats."""
NARROWEST, WIDEST = 1e-3, 20.0
"""Standard deviations of a component, of those of the linear regression's errors."""
RIDGE = 1e-6


class Dice(NamedTuple):
    """The chance of one draw of a head."""

    atoms: Array
    """Uniform, `[m]`."""
    components: Array
    """Uniform, `[d]`."""
    normals: Array
    """Standard normal, `[d]`."""


class _Net(eqx.Module):
    """Two layers with a way round the second, and one that begins at zero."""

    first: Dense
    second: Dense
    last: Dense

    def __init__(self, key: Array, inputs: int, width: int, outputs: int):
        first, second, last = jax.random.split(key, 3)
        self.first, self.second = Dense(first, inputs, width), Dense(second, width, width)
        self.last = Dense(last, width, outputs, scale=0.0)

    def __call__(self, x: Array) -> Array:
        x = jax.nn.silu(self.first(x))
        return self.last(x + jax.nn.silu(self.second(x)))


class Head(eqx.Module):
    """Q(code | seen, summary), with what is `seen` at hand, as features, and a network's `summary` of the rest.

    Args:
        key: of the first parameters. Consumed.
        seen: how many features are at hand.
        summary: the size of the summary.
        atoms: the shape of `Coding.log_prior`, `[m, n]`.
        normals: d.
        width: of hidden layers.
        components: of each mixture.
    """

    trunk: _Net
    coins: _Net
    """Stacked, one for each discrete number."""
    mixtures: _Net
    """Stacked, one for each normal number."""
    start: Array
    """Of the mixtures' parameters, `[3 K]`, to which the networks add."""
    line: Array
    """`[d, 1 + seen + m n + d]`: the linear regression of each normal number on a constant and all before it."""
    spread: Array
    """Standard deviations of its errors, `[d]`."""
    atoms: tuple[int, int] = eqx.field(static=True)

    def __init__(
        self, key: Array, seen: int, summary: int, atoms: tuple[int, int], normals: int, width: int, components: int
    ):
        key_trunk, key_coins, key_mixtures = jax.random.split(key, 3)
        context, known = seen + summary + width, atoms[0] * atoms[1]
        self.trunk = _Net(key_trunk, seen + summary, width, width)
        # The trunk is no last layer: its own last one is as any other.
        self.trunk = eqx.tree_at(lambda net: net.last, self.trunk, Dense(key_trunk, width, width))
        make = lambda count, inputs, outputs: (
            lambda key: eqx.filter_vmap(lambda k: _Net(k, inputs, width, outputs))(jax.random.split(key, count))
        )
        self.coins = make(atoms[0], context + known, atoms[1])(key_coins)
        self.mixtures = make(normals, context + known + normals, 3 * components)(key_mixtures)
        middles = SPREAD * normal_quantile((np.arange(components) + 0.5) / components)
        scale = np.full(components, 0.5 * np.log(1 - middles.var()))
        self.start = jnp.asarray(np.concatenate([np.zeros(components), middles, scale]), jnp.float32)
        self.line = jnp.zeros((normals, 1 + seen + known + normals))
        self.spread = jnp.ones(normals)
        self.atoms = atoms

    def with_line(self, seen: np.ndarray, codes: Code) -> "Head":
        """This head, beginning at the linear regression of the normal numbers on what was seen `[n, seen]`."""
        size = self.spread.shape[0]
        ones = np.eye(self.atoms[1])[np.asarray(codes.indices)].reshape(len(seen), -1)
        normals = np.asarray(codes.normals, float)
        table = np.concatenate([np.ones((len(seen), 1)), seen, ones, normals], 1)
        gram = table.T @ table / len(table)
        line, spread = np.zeros((size, table.shape[1])), np.ones(size)
        for j in range(size):
            before = table.shape[1] - size + j
            moment = gram[:before, :before] + RIDGE * np.eye(before)
            line[j, :before] = np.linalg.solve(moment, gram[:before, before])
            spread[j] = max(np.std(normals[:, j] - table @ line[j]), 1e-4)
        found = jnp.asarray(line, jnp.float32), jnp.asarray(spread, jnp.float32)
        return eqx.tree_at(lambda head: (head.line, head.spread), self, found)

    def log_prob(self, seen: Array, summary: Array, log_prior: Array, code: Code) -> Array:
        """Log q of one code; `log_prior` is `Coding.log_prior`."""
        context, ones = self._context(seen, summary), jax.nn.one_hot(code.indices, self.atoms[1])
        total = jnp.zeros(())
        if self.atoms[0]:
            logits = jax.vmap(lambda net, i: self._logits(net, i, context, ones, log_prior))(
                self.coins, jnp.arange(self.atoms[0])
            )
            total += jnp.sum(jnp.take_along_axis(logits, code.indices[:, None], 1))
        if self.spread.size:
            one = lambda net, line, spread, j: _log_density(
                *self._mixture(net, line, spread, j, context, seen, ones, code.normals), code.normals[j]
            )
            total += jnp.sum(jax.vmap(one)(self.mixtures, self.line, self.spread, jnp.arange(self.spread.size)))
        return total

    def sample(self, seen: Array, summary: Array, log_prior: Array, dice: Dice) -> tuple[Code, Array]:
        """A draw, made of `dice`, and its log q."""
        context = self._context(seen, summary)

        def coin(carry: tuple[Array, Array, Array], inputs: tuple[_Net, Array, Array]) -> tuple[tuple, None]:
            ones, indices, total = carry
            net, i, die = inputs
            logits = self._logits(net, i, context, ones, log_prior)
            index = _chosen(logits, die)
            ones = ones.at[i].set(jax.nn.one_hot(index, self.atoms[1]))
            return (ones, indices.at[i].set(index), total + logits[index]), None

        def number(carry: tuple[Array, Array], inputs: tuple) -> tuple[tuple, None]:
            normals, total = carry
            net, line, spread, j, die, normal = inputs
            logits, means, scales = self._mixture(net, line, spread, j, context, seen, ones, normals)
            chosen = _chosen(logits, die)
            value = means[chosen] + scales[chosen] * normal
            return (normals.at[j].set(value), total + _log_density(logits, means, scales, value)), None

        total, ones = jnp.zeros(()), jnp.zeros(self.atoms)
        indices, normals = jnp.zeros(self.atoms[0], jnp.int32), jnp.zeros(self.spread.size)
        if self.atoms[0]:
            inputs = self.coins, jnp.arange(self.atoms[0]), dice.atoms
            (ones, indices, total), _ = jax.lax.scan(coin, (ones, indices, total), inputs)
        if self.spread.size:
            inputs = self.mixtures, self.line, self.spread, jnp.arange(self.spread.size), dice.components, dice.normals
            (normals, total), _ = jax.lax.scan(number, (normals, total), inputs)
        return Code(indices, normals), total

    def dice(self, key: Array) -> Dice:
        """The chance of a draw. Consumes `key`."""
        key_uniform, key_normal = jax.random.split(key)
        uniform = jax.random.uniform(key_uniform, (self.atoms[0] + self.spread.size,))
        return Dice(
            uniform[: self.atoms[0]], uniform[self.atoms[0] :], jax.random.normal(key_normal, self.spread.shape)
        )

    def _context(self, seen: Array, summary: Array) -> Array:
        known = jnp.concatenate([seen, summary])
        return jnp.concatenate([known, jax.nn.silu(self.trunk(known))])

    def _logits(self, net: _Net, i: Array, context: Array, ones: Array, log_prior: Array) -> Array:
        """Normalized log-probabilities of the i-th discrete number, given those before it."""
        before = jnp.where(jnp.arange(self.atoms[0])[:, None] < i, ones, 0.0)
        return jax.nn.log_softmax(log_prior[i] + net(jnp.concatenate([context, before.ravel()])))

    def _mixture(
        self, net: _Net, line: Array, spread: Array, j: Array, context: Array, seen: Array, ones: Array, normals: Array
    ) -> tuple[Array, Array, Array]:
        """Log-weights, means and deviations of the j-th normal number, given those before it."""
        before = jnp.where(jnp.arange(normals.size) < j, normals, 0.0)
        known = jnp.concatenate([ones.ravel(), before])
        logits, means, scales = jnp.split(self.start + net(jnp.concatenate([context, known])), 3)
        middle = line @ jnp.concatenate([jnp.ones(1), seen, known])
        scales = jnp.exp(jnp.clip(scales, np.log(NARROWEST), np.log(WIDEST)))
        return jax.nn.log_softmax(logits), middle + spread * means, spread * scales


def _log_density(logits: Array, means: Array, scales: Array, value: Array) -> Array:
    return logsumexp(logits + jax.scipy.stats.norm.logpdf(value, means, scales))


def _chosen(logits: Array, die: Array) -> Array:
    """The category in whose interval a uniform number falls, int32."""
    upper = jnp.cumsum(jnp.exp(logits))
    return jnp.minimum(jnp.sum(upper <= die * upper[-1]), logits.size - 1).astype(jnp.int32)

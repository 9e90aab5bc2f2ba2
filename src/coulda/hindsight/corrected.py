"""`Corrected`: an amortized source whose draws are weighed by the evidence, where a density of it exists."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array
from jax.scipy.special import logsumexp

from coulda.errors import CouldaError
from coulda.hindsight.amortized import Amortized
from coulda.hindsight.coding import Code
from coulda.hindsight.likelihood import Seen
from coulda.hindsight.moves import ISLANDS, Moves, Path
from coulda.hindsight.particles import Sampler, check_size, filter_islands, island_gap, populated, systematic
from coulda.hindsight.source import ALL_STEPS, FINE, IMPOSSIBLE, NOT_A_NUMBER, Inference
from coulda.hindsight.tempered import SCOUTS
from coulda.noise import effective_sample_size
from coulda.pomdp import POMDP, Actor


class Corrected(Sampler):
    """Draws of p(U | h_t) by importance sampling, a network being the proposal.

    Whole paths are drawn from the network, which knows what is to come, and weighed by p(u) p(h_t | u) / q(u | h_t):
    what the network gets wrong is repaired, and how wrong it was is told by how many draws are left. Nothing is
    resampled on the way: a path that is drawn for what is to come looks unlikely until it has come. At last paths are
    moved as those of `Particles` are.

    The weights must count all that the network knows of. By default both hold rewards for evidence where they take
    separate values; a network that was shown others needs a `reward_scale`.

    Args:
        amortized: the network's source.
        model: any POMDP with the noise that the network was trained on, whose observations have a density.
        behavior: who acted; see `Particles`.
        particles: how many draws of the network are weighed.
        moves: how often each path that is drawn is moved afterwards.
        reward_scale: the standard deviation of logged rewards; see `Particles`.
    """

    amortized: Amortized
    particles: int = eqx.field(static=True)
    moves: int = eqx.field(static=True)

    def __init__(
        self,
        amortized: Amortized,
        model: POMDP,
        behavior: Actor | None = None,
        *,
        particles: int = 200,
        moves: int = 20,
        reward_scale: float | None = None,
    ):
        check_size("moves", moves, 0)
        drawn, own = (jax.eval_shape(one.sample, jax.random.key(0)) for one in (amortized.prior, model.scenario_prior))
        if jax.tree.structure(drawn) != jax.tree.structure(own) or jax.tree.leaves(drawn) != jax.tree.leaves(own):
            raise CouldaError(
                f"the network draws noise that {type(model).__name__} does not have; correct it by the model that it "
                "was trained on."
            )
        self.evidence = populated(model, behavior, reward_scale, particles)
        if amortized.network.architecture.rewards and not self.evidence.rewards:
            raise CouldaError(
                f"the network was shown rewards, which vary little by little in {type(model).__name__} and are not "
                "weighed: give their standard deviation as reward_scale, or train the network with rewards=False."
            )
        self.amortized, self.particles, self.moves = amortized, particles, moves
        self.steps = jnp.int32(ALL_STEPS)

    def paths(self, key: Array, seen: Seen, count: int) -> tuple[Path, Inference]:
        """Draws of the network by weight, moved. Consumes `key`."""
        key_scout, key_draw, key_dice, key_move = jax.random.split(key, 4)
        cut_short = filter_islands(key_scout, self.evidence, seen, SCOUTS)[0].cut_short.all()
        size = self.particles // ISLANDS
        keys = jax.random.split(key_draw, ISLANDS * size)
        known = self.amortized.network.known(seen)
        actions = jax.tree.map(lambda leaf: leaf[:-1], seen.action)

        def weighed(one: Array) -> tuple[Path, Array, Array]:
            key_codes, key_rest = jax.random.split(one)
            first, rest, log_q = self.amortized.codes(key_codes, known, actions)
            path = Path(*self.amortized.positions(key_rest, first, rest))
            agreement = self.agreement(path, seen, cut_short)
            log_weight = agreement.log_likelihood + self._log_prior(first, rest, known.acted) - log_q
            return path, log_weight, agreement.flawed

        paths, log_weights, flawed = jax.vmap(weighed)(keys)
        nothing = ~(log_weights > -jnp.inf).any()
        weights = jnp.where(nothing, 1.0 / keys.shape[0], jax.nn.softmax(jnp.where(nothing, 0.0, log_weights)))
        chosen = _by_weight(key_dice, weights, count)
        found = jax.tree.map(lambda leaf: leaf[chosen], paths)
        if self.moves:
            chain = Moves(self, seen, cut_short, self.moves)
            found = chain.moved(key_move, chain.begun(found)).paths
        islands = logsumexp(log_weights.reshape(ISLANDS, size), axis=1) - jnp.log(1.0 * size)
        reason = jnp.where(flawed.any(), NOT_A_NUMBER, jnp.where(nothing, IMPOSSIBLE, FINE)).astype(jnp.int32)
        return found, Inference(
            log_evidence=logsumexp(islands) - jnp.log(1.0 * ISLANDS),
            effective=jnp.where(nothing, 0.0, effective_sample_size(weights)),
            gap=island_gap(islands),
            r_hat=jnp.ones(()),
            reason=reason,
            step=jnp.where(reason == FINE, -1, 0).astype(jnp.int32),
        )

    def _log_prior(self, first: Code, rest: Code, acted: Array) -> Array:
        """Of codes, as far as h_t tells of them."""
        codings = self.amortized.codings
        later = jax.vmap(lambda code: log_prior_of(codings.transition.log_prior, code))(rest)
        return log_prior_of(codings.initial.log_prior, first) + jnp.sum(jnp.where(acted, later, 0.0))


def log_prior_of(table: Array, code: Code) -> Array:
    """Log p of one code, with the atoms' `Coding.log_prior`."""
    atoms = jnp.sum(jnp.take_along_axis(table, code.indices[:, None], 1)) if code.indices.size else jnp.zeros(())
    return atoms + jnp.sum(jax.scipy.stats.norm.logpdf(code.normals))


def _by_weight(key: Array, weights: Array, count: int) -> Array:
    """Which of `[n]` are drawn, `[count]`, in random order: as evenly as their weights allow. Consumes `key`."""
    key_offset, key_order = jax.random.split(key)
    chosen: Any = systematic(jax.random.uniform(key_offset), weights, count)
    return jax.random.permutation(key_order, chosen)

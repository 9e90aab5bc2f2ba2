"""`Nuts`: p(U | h_t) by the no-U-turn sampler, for smooth models; several chains that begin at draws of a filter."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array

from coulda.abduction import nuts_chain
from coulda.errors import CouldaError
from coulda.extras import require
from coulda.hindsight.likelihood import Evidence, Seen
from coulda.hindsight.moves import Path
from coulda.hindsight.particles import Filtered, Sampler, check_size, descent, filter_islands
from coulda.hindsight.source import ALL_STEPS, Inference
from coulda.noise import Normal
from coulda.pomdp import POMDP, Actor


class Nuts(Sampler):
    """Draws of p(U | h_t) by Markov chains that follow the gradient of the likelihood; extra `mcmc`.

    It takes seconds for an episode where `Tempered` takes a fraction of one, and is the most precise where the model is
    smooth. Chains that do not agree say so (R̂).

    Args:
        model: a POMDP that is differentiable in its noise, all of it continuous.
        behavior: who acted, as for `Particles`.
        chains: how many, each begun at a draw of a particle filter.
        warmup: steps in which each chain learns its step size and its scales.
        draws: that each chain keeps afterwards.
        particles: of the filter in which the chains begin.
        reward_scale: as for `Particles`.
    """

    chains: int = eqx.field(static=True)
    warmup: int = eqx.field(static=True)
    draws: int = eqx.field(static=True)
    particles: int = eqx.field(static=True)

    def __init__(
        self,
        model: POMDP,
        behavior: Actor | None = None,
        *,
        chains: int = 4,
        warmup: int = 300,
        draws: int = 250,
        particles: int = 500,
        reward_scale: float | None = None,
    ):
        require("blackjax", extra="mcmc")
        check_size("chains", chains, 2)
        check_size("warmup", warmup, 20)
        check_size("draws", draws, 10)
        check_size("particles", particles, 2)
        self.evidence = Evidence.of(model, behavior, reward_scale)
        self.chains, self.warmup, self.draws, self.particles = chains, warmup, draws, particles
        self.steps = jnp.int32(ALL_STEPS)
        for name, coordinates in {"initial_noise": self.initial, "transition_noise": self.transition}.items():
            if not coordinates.continuous:
                raise CouldaError(
                    f"Nuts follows gradients, and {name} of {type(model).__name__} is not all continuous (it needs "
                    "`from_normal`); use Particles or Tempered."
                )

    def paths(self, key: Array, seen: Seen, count: int) -> tuple[Path, Inference]:
        """Draws of all chains in turn. Consumes `key`."""
        key_filter, key_chains = jax.random.split(key)
        islands, dice = filter_islands(key_filter, self.evidence, seen, self.particles, 1, self.chains)
        starts = descent(islands, islands.draw(dice))

        def log_density(path: Path) -> Array:
            agreed = self.agreement(path, seen, islands.cut_short[0]).log_likelihood
            parts = self.initial.normals(path.initial) + self.transition.normals(path.transition)
            return agreed + sum((Normal().log_prob(x) for x in parts), jnp.zeros(()))

        numbers, others = eqx.partition(starts, eqx.is_inexact_array)
        fixed = jax.tree.map(lambda leaf: leaf[0], others)  # noise without chance, the same in every path

        def chain(key: Array, start: Path) -> Path:
            density = lambda moving: log_density(eqx.combine(moving, fixed))
            return nuts_chain(key, density, start, self.warmup, self.draws)

        walked = jax.vmap(chain)(jax.random.split(key_chains, self.chains), numbers)  # [chains, draws, ...]
        step = max(self.chains * self.draws // count, 1)
        number = (jnp.arange(count) * step) % (self.chains * self.draws)
        found = jax.tree.map(lambda leaf: leaf[number % self.chains, number // self.chains], walked)
        again = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (count, *leaf.shape)), fixed)
        return eqx.combine(found, again), self._inference(islands, walked)

    def _inference(self, islands: Filtered, walked: Path) -> Inference:
        leaves = [leaf.reshape(self.chains, self.draws, -1) for leaf in jax.tree.leaves(walked)]
        numbers = jnp.concatenate([leaf for leaf in leaves if leaf.shape[-1]], axis=-1)
        diagnostics: Any = require("blackjax", extra="mcmc").diagnostics
        with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
            worst = jnp.max(diagnostics.potential_scale_reduction(numbers))
            effective = jnp.min(diagnostics.effective_sample_size(numbers))
        return Inference(
            islands.log_evidence[0],
            jnp.nan_to_num(effective),
            jnp.zeros(()),
            jnp.nan_to_num(worst, nan=jnp.inf),
            islands.reason[0],
            islands.step[0],
        )

"""What an episode leaves behind: `Episode` is what can be logged, `Trajectory` adds the hidden states."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from coulda.errors import CouldaError


class Episode(eqx.Module):
    """The visible part of one episode of at most T steps: the history h, padded to T."""

    observation: Any
    """o_1 … o_{T+1}, `[T + 1, ...]`: the last one follows the last action."""
    action: Any
    """a_1 … a_T, `[T, ...]`."""
    reward: Array
    """r_1 … r_T, `[T]`; zero after the end."""
    live: Array
    """`[T]`, True where the step was taken, False after the episode's end."""
    log_prob: Array
    """log μ(a_t | h_t) under the policy that acted, `[T]`; NaN where it is not known."""

    @property
    def episode_return(self) -> Array:
        """G = Σ_t r_t, undiscounted."""
        return jnp.sum(self.reward, axis=-1)

    def discounted_return(self, discount: float) -> Array:
        """G = Σ_t γ^t r_t, t from 0."""
        if discount == 1:
            return self.episode_return
        worth = np.asarray(discount ** np.arange(self.reward.shape[-1]), np.float32)
        return jnp.einsum("...t,t->...", self.reward, worth)

    @property
    def length(self) -> Array:
        """The number of steps taken."""
        return jnp.sum(self.live, axis=-1)


class Trajectory(eqx.Module):
    """τ: an episode together with its hidden states."""

    state: Any
    """s_1 … s_{T+1}, `[T + 1, ...]`."""
    episode: Episode

    @property
    def episode_return(self) -> Array:
        """G, undiscounted."""
        return self.episode.episode_return

    @property
    def first_flaw(self) -> Array:
        """Step and field of the first number that is none, as step · 4 + field of `FIELDS`; `FINE` where all are fine.

        States and observations may hold infinities, rewards and actions may not. A discrete action that was drawn from
        probabilities that are NaN is flawed too. Only live steps count.
        """
        episode, steps = self.episode, self.episode.reward.shape[0]
        action = _any(lambda leaf: ~jnp.isfinite(leaf), episode.action, steps)
        if not any(map(_is_float, jax.tree.leaves(episode.action))):
            action |= jnp.isnan(episode.log_prob)
        seen = _any(jnp.isnan, self.state, steps), _any(jnp.isnan, episode.observation, steps)
        flaws = jnp.stack([*seen, action, ~jnp.isfinite(episode.reward)], axis=1)
        flaws = (flaws & episode.live[:, None]).reshape(-1)
        return jnp.where(flaws.any(), jnp.argmax(flaws), FINE).astype(jnp.int32)


def check_discount(discount: float) -> None:
    """Refuse what is no discount."""
    if not 0 < discount <= 1:
        raise CouldaError(f"discount is {discount}; it must lie in (0, 1], such as 0.99, 1 being no discount")


FIELDS = ("state", "observation", "action", "reward")
"""What a step makes, in that order."""
FINE = -1


def _any(test: Callable[[Array], Array], tree: Any, steps: int) -> Array:
    """Whether any number of each of the first steps fails the test, `[T]`; integers never do."""
    found = [test(leaf[:steps]).reshape(steps, -1).any(1) for leaf in jax.tree.leaves(tree) if _is_float(leaf)]
    return jnp.stack(found).any(0) if found else jnp.zeros(steps, bool)


def _is_float(leaf: Any) -> bool:
    return jnp.issubdtype(leaf.dtype, jnp.inexact)

"""What an episode leaves behind: `Episode` is what can be logged, `Trajectory` adds the hidden states."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jax import Array


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

"""Where a run of a policy in a model first went out of the numbers: a NaN is named, never averaged."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from coulda.pomdp import Trajectory

FIELDS = ("state", "observation", "action", "reward")
"""In the order in which a step makes them."""
FIXES = {
    "state": "the model's `initial` or `transition` gave a NaN",
    "observation": "the model's `observe` gave a NaN",
    "action": "the policy gave logits that are NaN or infinite, or a mean or scale that is",
    "reward": "the model's `reward` is not finite",
}
FINE = -1


def first_flaw(trajectory: Trajectory) -> Array:
    """Step and field of the first number of a trajectory that is none, as step · 4 + field; -1 where all are fine.

    States and observations may hold infinities, rewards and actions may not. A discrete action that was drawn from
    probabilities that are NaN is flawed too. Only live steps count.
    """
    episode = trajectory.episode
    steps = episode.reward.shape[0]
    action = _any(lambda leaf: ~jnp.isfinite(leaf), episode.action, steps)
    if not jax.tree.leaves(jax.tree.map(_is_float, episode.action))[0]:
        action |= jnp.isnan(episode.log_prob)
    flaws = jnp.stack(
        [
            _any(jnp.isnan, trajectory.state, steps),
            _any(jnp.isnan, episode.observation, steps),
            action,
            ~jnp.isfinite(episode.reward),
        ],
        axis=1,
    )
    flaws = (flaws & episode.live[:, None]).reshape(-1)
    return jnp.where(flaws.any(), jnp.argmax(flaws), FINE).astype(jnp.int32)


def explain_flaw(code: int, where: str) -> str:
    """What to say of a flaw."""
    step, field = divmod(code, len(FIELDS))
    name = FIELDS[field]
    return f"On {where} the {name} of step {step} is not a finite number: {FIXES[name]}. Mend it there."


def _any(test: Any, tree: Any, steps: int) -> Array:
    """Whether any number of each of the first steps fails the test, `[T]`; integers never do."""
    found = [test(leaf[:steps]).reshape(steps, -1).any(1) for leaf in jax.tree.leaves(tree) if _is_float(leaf)]
    return jnp.stack(found).any(0) if found else jnp.zeros(steps, bool)


def _is_float(leaf: Any) -> bool:
    return jnp.issubdtype(leaf.dtype, jnp.inexact)

"""Monte Carlo tree search on the model with its true kernels: Gumbel MuZero's, of `mctx` (Danihelka et al., 2022)."""

from collections.abc import Callable
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array

from coulda.errors import CouldaError
from coulda.extras import require
from coulda.noise import Categorical
from coulda.pomdp import POMDP, Planner

Value = Callable[[Any, Array], Array]
"""(state, steps that remain) -> the return to expect, where the search goes no further."""


def _no_value(state: Any, remaining: Array) -> Array:  # noqa: ARG001
    """0, whatever the state: all that is known of the return is what the search meets."""
    return jnp.zeros(())


class MCTS(Planner):
    """λ(a | s): the improved policy of a tree search from the state, to the end of the episode at most.

    Nothing is drawn while it plans: Gumbel noise at the root is left out, and what the model would draw in the tree
    are the fixed draws of `seed`, one per simulation. In a model with noisy transitions a node keeps the first outcome
    that it saw, so that the plan is one for sampled outcomes; where transitions are deterministic it is a plain search.

    Args:
        model: a POMDP with discrete actions.
        num_simulations: nodes of the tree; more find deeper plans.
        value: the value of leaves.
        value_scale: how soon the search trusts the values it has met over its uniform prior (MuZero's is 0.1, with a
            learned value at the leaves; without one, a smaller scale looks further).
        temperature: the temperature of the improved policy; low ones act greedily.
        seed: the seed of the transition noise in the tree.
        discount: γ of the return.
    """

    model: POMDP
    num_simulations: int = eqx.field(static=True, default=64)
    value: Value = eqx.field(static=True, default=_no_value)
    value_scale: float = eqx.field(static=True, default=0.01)
    temperature: float = eqx.field(static=True, default=1.0)
    seed: int = eqx.field(static=True, default=0)
    discount: float = eqx.field(static=True, default=1.0)

    def __check_init__(self):
        require("mctx", extra="mcts")
        if not hasattr(self.model.action_space, "n"):
            raise CouldaError(f"MCTS needs discrete actions; the model's are {self.model.action_space}.")

    def initial_carry(self) -> Array:
        """The step."""
        return jnp.int32(0)

    def __call__(self, carry: Array, state: Any, observation: Any) -> tuple[Array, Categorical]:  # noqa: ARG002
        """The improved policy at the root."""
        import mctx

        remaining = self.model.horizon - carry
        key = jax.random.fold_in(jax.random.key(self.seed), carry)
        one = jax.tree.map(lambda leaf: leaf[None], (state, remaining))
        root = mctx.RootFnOutput(
            prior_logits=self._prior(),  # pyright: ignore[reportCallIssue]
            value=self.value(state, remaining)[None],  # pyright: ignore[reportCallIssue]
            embedding=one,  # pyright: ignore[reportCallIssue]
        )
        with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):  # mctx promotes
            output = mctx.gumbel_muzero_policy(
                (),
                key,
                root,
                self._simulate,  # pyright: ignore[reportArgumentType]
                num_simulations=self.num_simulations,
                max_num_considered_actions=self._num_actions,
                qtransform=partial(mctx.qtransform_completed_by_mix_value, value_scale=self.value_scale),
                gumbel_scale=0.0,
            )
        logits = jnp.log(jnp.asarray(output.action_weights)[0]) / self.temperature
        return carry + 1, Categorical(logits=logits)

    @property
    def _num_actions(self) -> int:
        return int(self.model.action_space.n)  # pyright: ignore[reportAttributeAccessIssue]

    def _prior(self) -> Array:
        return jnp.zeros((1, self._num_actions))

    def _simulate(self, _: Any, key: Array, action: Array, embedding: Any) -> tuple[Any, Any]:
        """One step of the model, as `mctx` asks for it: a batch of one, rewards and values after the end being zero."""
        import mctx

        state, remaining = jax.tree.map(lambda leaf: leaf[0], embedding)
        action = action[0].astype(jnp.int32)
        live = ~self.model.terminal(state) & (remaining > 0)
        moved = self.model.transition(state, action, self.model.transition_noise.sample(key))
        following = jax.tree.map(lambda new, old: jnp.where(live, new, old), moved, state)
        remaining = jnp.maximum(remaining - 1, 0)
        over = self.model.terminal(following) | (remaining == 0)
        reward = jnp.where(live, self.model.reward(state, action, following), 0.0)
        output = mctx.RecurrentFnOutput(
            reward=reward[None],  # pyright: ignore[reportCallIssue]
            discount=jnp.where(over, 0.0, self.discount)[None],  # pyright: ignore[reportCallIssue]
            prior_logits=self._prior(),  # pyright: ignore[reportCallIssue]
            value=jnp.where(over, 0.0, self.value(following, remaining))[None],  # pyright: ignore[reportCallIssue]
        )
        return output, jax.tree.map(lambda leaf: leaf[None], (following, remaining))

"""POMDPs given by probability tables, and two that everybody knows: the tiger and the forest."""

import equinox as eqx
import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import ArrayLike

from coulda.errors import CouldaError
from coulda.noise import Categorical, NoiseDistribution
from coulda.pomdp import (
    ActionMechanism,
    FinitePOMDP,
    GumbelMaxChoice,
    InverseCDFChoice,
    TransitionChoices,
    choice,
)


class TabularState(eqx.Module):
    """The state, and the action that led to it (-1 at first), since observations may depend on it."""

    index: Array
    action: Array


class TabularPOMDP(FinitePOMDP):
    """A POMDP of numbered states, actions and observations.

    Args:
        initial: P(s_1), `[S]`.
        transition: P(s' | s, a), `[A, S, S]`.
        observation: P(o | s), `[S, O]`, seen from the first step on; or P(o | a, s') of Cassandra's files,
            `[A, S, O]`, where nothing has been seen before the first action: observation number O, "nothing yet".
        reward: the reward of (a, s, s'), `[A, S, S]`, or what broadcasts to it: `[S]` is of the state entered.
        horizon: T.
        reparameterization: "gumbel_max" or "inverse_cdf", for states, observations and actions alike.
        terminal: `[S]`, True where the episode is over; none by default.
    """

    initial_logits: Array
    transition_logits: Array
    observation_logits: Array
    """`[A + 1, S, O]`, the last for the first step."""
    rewards: Array
    terminals: Array
    horizon: int = eqx.field(static=True)
    reparameterization: str = eqx.field(static=True)
    action_mechanism: ActionMechanism

    def __init__(
        self,
        initial: ArrayLike,
        transition: ArrayLike,
        observation: ArrayLike,
        reward: ArrayLike,
        *,
        horizon: int,
        reparameterization: str,
        terminal: ArrayLike | None = None,
    ):
        transition = np.asarray(transition, float)
        if transition.ndim != 3 or transition.shape[1] != transition.shape[2]:
            raise CouldaError(f"transition must be [A, S, S]; got shape {transition.shape}.")
        actions, states, _ = transition.shape
        observation = _with_first_step(np.asarray(observation, float), actions, states)
        initial = np.asarray(initial, float)
        if initial.shape != (states,):
            raise CouldaError(f"initial must be [{states}], one number a state; got shape {initial.shape}.")
        tables = {"initial": initial, "transition": transition, "observation": observation}
        logits = {name: _log(name, table) for name, table in tables.items()}
        self.initial_logits, self.transition_logits, self.observation_logits = logits.values()
        self.rewards = jax.device_put(np.broadcast_to(np.asarray(reward, np.float32), transition.shape))
        self.terminals = jax.device_put(np.zeros(states, bool) if terminal is None else np.asarray(terminal, bool))
        if self.terminals.shape != (states,):
            raise CouldaError(f"terminal must be [{states}]; got shape {self.terminals.shape}.")
        self.horizon, self.reparameterization = horizon, reparameterization
        self.action_mechanism = choice(reparameterization, actions)

    @property
    def num_states(self) -> int:
        """S."""
        return self.initial_logits.shape[0]

    @property
    def action_space(self) -> gymnasium.spaces.Discrete:
        """Discrete(A)."""
        return gymnasium.spaces.Discrete(self.transition_logits.shape[0])

    @property
    def observation_space(self) -> gymnasium.spaces.Discrete:
        """Discrete(O), or Discrete(O + 1) where the first observation is "nothing yet"."""
        return gymnasium.spaces.Discrete(self.observation_logits.shape[2])

    @property
    def _state_mechanism(self) -> GumbelMaxChoice | InverseCDFChoice:
        return choice(self.reparameterization, self.num_states)

    @property
    def _observation_mechanism(self) -> GumbelMaxChoice | InverseCDFChoice:
        return choice(self.reparameterization, self.observation_logits.shape[2])

    @property
    def initial_noise(self) -> NoiseDistribution:
        """The noise of a choice among states."""
        return self._state_mechanism.noise

    @property
    def transition_noise(self) -> NoiseDistribution:
        """The noise of a choice among states."""
        return self._state_mechanism.noise

    @property
    def observation_noise(self) -> NoiseDistribution:
        """The noise of a choice among observations."""
        return self._observation_mechanism.noise

    def initial(self, u: Array) -> TabularState:
        """S_1."""
        index = self._state_mechanism(self._initial, u)
        # -1, made of what is batched: a loop whose carry begins with a constant is batched twice when it is traced.
        return TabularState(index, index * 0 - 1)

    def transition(self, state: TabularState, action: Array, u: Array) -> TabularState:
        """S_{t+1}."""
        return TabularState(self._state_mechanism(self._next(state, action), u), action)

    def reward(self, state: TabularState, action: Array, next_state: TabularState) -> Array:
        """The reward in the table."""
        return self.rewards[action, state.index, next_state.index]

    def observe(self, state: TabularState, u: Array) -> Array:
        """O_t, an int32."""
        return self._observation_mechanism(self._seen(state), u)

    def observation_log_prob(self, observation: Array, state: TabularState) -> Array:
        """The log-probability in the table."""
        return self._seen(state).log_prob(observation)

    def terminal(self, state: TabularState) -> Array:
        """Whether the table ends episodes here."""
        return self.terminals[state.index]

    def tables(self) -> tuple[Array, Array, Array]:
        """The tables as they were given."""
        return jnp.exp(self.transition_logits), self.rewards, self.terminals

    def transition_choices(self) -> TransitionChoices:
        """Among the states themselves."""
        return TransitionChoices(jnp.exp(self.transition_logits), None, self.reparameterization)

    def states(self, previous_action: Array, observation: Array) -> TabularState:  # noqa: ARG002
        """All S states; the observation table weighs them."""
        every = jnp.arange(self.num_states, dtype=jnp.int32)
        return TabularState(every, jnp.full_like(every, previous_action))

    def initial_log_prob(self, state: TabularState) -> Array:
        """The log-probability in the table."""
        return self.initial_logits[state.index]

    def transition_log_prob(self, state: TabularState, action: Array, next_state: TabularState) -> Array:
        """The log-probability in the table."""
        return self.transition_logits[action, state.index, next_state.index]

    def initial_posterior(self, state: TabularState, fresh: Array) -> Array:
        """Noise that chooses this state."""
        return self._state_mechanism.posterior(self._initial, state.index, fresh)

    def transition_posterior(self, state: TabularState, action: Array, next_state: TabularState, fresh: Array) -> Array:
        """Noise that chooses this next state."""
        return self._state_mechanism.posterior(self._next(state, action), next_state.index, fresh)

    def observation_posterior(self, state: TabularState, observation: Array, fresh: Array) -> Array:
        """Noise that chooses this observation."""
        return self._observation_mechanism.posterior(self._seen(state), observation, fresh)

    @property
    def _initial(self) -> Categorical:
        return Categorical(logits=self.initial_logits)

    def _next(self, state: TabularState, action: Array) -> Categorical:
        return Categorical(logits=self.transition_logits[action, state.index])

    def _seen(self, state: TabularState) -> Categorical:
        return Categorical(logits=self.observation_logits[state.action, state.index])


def tiger(*, horizon: int, reparameterization: str, accuracy: float = 0.85) -> TabularPOMDP:
    """A tiger behind one of two doors (Kaelbling et al., 1998), which is anew placed when a door is opened.

    Actions: 0 listen (-1), 1 open left, 2 open right (-100 with the tiger, else 10). Observations: 0 heard left,
    1 heard right, 2 nothing yet. States: 0 left, 1 right.
    """
    listen = [[accuracy, 1 - accuracy], [1 - accuracy, accuracy]]
    uniform = np.full((2, 2), 0.5)
    return TabularPOMDP(
        initial=[0.5, 0.5],
        transition=np.stack([np.eye(2), uniform, uniform]),
        observation=np.stack([listen, uniform, uniform]),
        reward=np.array([[-1, -1], [-100, 10], [10, -100]])[:, :, None],
        horizon=horizon,
        reparameterization=reparameterization,
    )


def forest(*, horizon: int, reparameterization: str, fire: float = 0.1) -> TabularPOMDP:
    """Forest management, three ages, observed: 0 wait, 1 cut (the example of the MDP toolbox, its defaults).

    Waiting ages the forest, unless it burns; in the oldest state waiting pays 4 and cutting 2, cutting in the
    middle pays 1, and nothing else pays.
    """
    wait = np.zeros((3, 3))
    wait[:, 0] = fire
    wait[[0, 1, 2], [1, 2, 2]] += 1 - fire
    cut = np.zeros((3, 3))
    cut[:, 0] = 1
    return TabularPOMDP(
        initial=[1.0, 0.0, 0.0],
        transition=np.stack([wait, cut]),
        observation=np.eye(3),
        reward=np.array([[0, 0, 4], [0, 1, 2]])[:, :, None],
        horizon=horizon,
        reparameterization=reparameterization,
    )


def _with_first_step(observation: np.ndarray, actions: int, states: int) -> np.ndarray:
    """P(o | previous action, s), `[A + 1, S, O]`, from either form that a user may give."""
    if observation.ndim == 2 and observation.shape[0] == states:
        return np.broadcast_to(observation, (actions + 1, *observation.shape))
    if observation.shape[:2] != (actions, states) or observation.ndim != 3:
        raise CouldaError(
            f"observation must be [S, O] = [{states}, O] or [A, S, O] = [{actions}, {states}, O]; "
            f"got shape {observation.shape}."
        )
    later = np.concatenate([observation, np.zeros((actions, states, 1))], axis=2)
    first = np.zeros((1, *later.shape[1:]))
    first[..., -1] = 1
    return np.concatenate([later, first])


def _log(name: str, table: np.ndarray) -> Array:
    """Normalized log-probabilities; the table's rows must be distributions."""
    sums = table.sum(-1, keepdims=True)
    bad = np.argwhere((table < 0).any(-1) | (np.abs(sums[..., 0] - 1) > 1e-4) | ~np.isfinite(sums[..., 0]))
    if bad.size or bad.shape[0]:
        where = tuple(int(i) for i in bad[0])
        raise CouldaError(
            f"{name}: row {list(where)} is {np.round(table[where], 6).tolist()}, with sum {sums[where][0]:g}. "
            "Each row must be ≥ 0 and sum to 1."
        )
    with np.errstate(divide="ignore"):
        return jax.device_put(np.log(table / sums).astype(np.float32))

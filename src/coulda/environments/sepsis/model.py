"""`Sepsis`: the simulator as a POMDP with exact probabilities."""

import equinox as eqx
import gymnasium
import jax.numpy as jnp
import numpy as np
from jax import Array

from coulda.environments.sepsis import kernel
from coulda.environments.sepsis.kernel import NUM_ACTIONS, NUM_OBSERVED, NUM_TREATMENTS, NUM_VITALS
from coulda.environments.sepsis.noise import MECHANISMS, Before, TransitionMechanism, VitalsChoice
from coulda.errors import CouldaError
from coulda.noise import Categorical, Independent
from coulda.pomdp import ActionMechanism, FinitePOMDP, TransitionChoices, choice


class SepsisState(eqx.Module):
    """What is seen, in 0 … 719, and what is not: whether the patient is diabetic, 0 or 1."""

    diabetic: Array
    observed: Array

    @property
    def index(self) -> Array:
        """The number of the state, in 0 … 1439, the diabetic half last."""
        return self.diabetic * NUM_OBSERVED + self.observed


class Sepsis(FinitePOMDP):
    """Treat a septic patient who may be diabetic.

    Args:
        reparameterization: "gumbel_max" (as published), "gumbel_max_vitals", "inverse_cdf" or "simulator", of a
            transition; see `coulda.environments.sepsis.noise`. First state and actions are Gumbel-max with the
            first two and inverse-CDF with the others.
        diabetes: the probability of diabetes before patients who are dead or healthy at once are turned away.
        horizon: T.
    """

    log_probs: Array
    """The log-probabilities of the next vitals, `[2, 8, 720, 90]`: by diabetes, action and observed state."""
    initial_logits: Array
    """`[2, 90]`: no treatment is given at first."""
    rewards: Array
    horizon: int = eqx.field(static=True)
    mechanism: TransitionMechanism
    action_mechanism: ActionMechanism
    _discrete: str = eqx.field(static=True)

    def __init__(self, *, reparameterization: str, diabetes: float = 0.2, horizon: int = 20):
        if reparameterization not in MECHANISMS:
            raise CouldaError(f"reparameterization is {reparameterization!r}; name one of {list(MECHANISMS)}.")
        if not 0 <= diabetes <= 1:
            raise CouldaError(f"diabetes is a probability; got {diabetes}.")
        self.log_probs = jnp.log(kernel.transition_probabilities())
        with np.errstate(divide="ignore"):
            initial = np.log(kernel.initial_probabilities(diabetes)[:, ::NUM_TREATMENTS])
        self.initial_logits, self.rewards = jnp.asarray(initial, jnp.float32), jnp.asarray(kernel.rewards())
        self.horizon, self.mechanism = horizon, MECHANISMS[reparameterization]
        self._discrete = "gumbel_max" if reparameterization.startswith("gumbel_max") else "inverse_cdf"
        self.action_mechanism = choice(self._discrete, NUM_ACTIONS)

    @property
    def num_states(self) -> int:
        """1440."""
        return 2 * NUM_OBSERVED

    @property
    def action_space(self) -> gymnasium.spaces.Discrete:
        """4 · antibiotics + 2 · ventilation + vasopressors."""
        return gymnasium.spaces.Discrete(NUM_ACTIONS)

    @property
    def observation_space(self) -> gymnasium.spaces.Discrete:
        """Vitals and treatments."""
        return gymnasium.spaces.Discrete(NUM_OBSERVED)

    @property
    def initial_noise(self) -> Independent:
        """The noise of a choice between diabetes and none, and of one among vitals."""
        sizes = {"diabetic": 2, "vitals": NUM_VITALS}
        return Independent({name: choice(self._discrete, size).noise for name, size in sizes.items()})

    @property
    def transition_noise(self):
        """As the reparameterization has it."""
        return self.mechanism.noise

    def initial(self, u: dict[str, Array]) -> SepsisState:
        """S_1: untreated, neither dead nor healthy."""
        diabetic = choice(self._discrete, 2)(self._component, u["diabetic"])
        vitals = choice(self._discrete, NUM_VITALS)(self._vitals(diabetic), u["vitals"])
        return SepsisState(diabetic, vitals * NUM_TREATMENTS)

    def transition(self, state: SepsisState, action: Array, u: object) -> SepsisState:
        """New vitals by chance, new treatments by the action."""
        vitals = self.mechanism(self._before(state, action), u)
        observed = vitals * NUM_TREATMENTS + kernel.treatment_bits(action)
        return SepsisState(state.diabetic, observed.astype(jnp.int32))

    def reward(self, state: SepsisState, action: Array, next_state: SepsisState) -> Array:  # noqa: ARG002
        """-1 for death, 1 for discharge."""
        return self.rewards[next_state.observed]

    def observe(self, state: SepsisState, u: object) -> Array:  # noqa: ARG002
        """Everything but diabetes."""
        return state.observed

    def terminal(self, state: SepsisState) -> Array:
        """Dead or discharged."""
        return self.rewards[state.observed] != 0

    def tables(self) -> tuple[Array, Array, Array]:
        """Dense, `[8, 1440, 1440]`."""
        probabilities = np.exp(np.asarray(self.log_probs))
        transition = np.zeros((NUM_ACTIONS, 2, NUM_OBSERVED, 2, NUM_OBSERVED), np.float32)
        for action in range(NUM_ACTIONS):
            reached = slice(int(kernel.treatment_bits(jnp.int32(action))), None, NUM_TREATMENTS)
            for diabetic in range(2):
                transition[action, diabetic, :, diabetic, reached] = probabilities[diabetic, action]
        rewards = jnp.tile(self.rewards, 2)
        size = self.num_states
        return (
            jnp.asarray(transition.reshape(NUM_ACTIONS, size, size)),
            jnp.broadcast_to(rewards, (NUM_ACTIONS, size, size)),
            rewards != 0,
        )

    def transition_choices(self) -> TransitionChoices:
        """Among 90 combinations of vitals, where all actions share their noise."""
        if not isinstance(self.mechanism, VitalsChoice):
            return super().transition_choices()
        probabilities = jnp.exp(self.log_probs).swapaxes(0, 1).reshape(NUM_ACTIONS, self.num_states, NUM_VITALS)
        diabetic = NUM_OBSERVED * (jnp.arange(self.num_states) // NUM_OBSERVED)
        vitals, treatments = jnp.arange(NUM_VITALS) * NUM_TREATMENTS, kernel.treatment_bits(jnp.arange(NUM_ACTIONS))
        next_state = treatments[:, None, None] + diabetic[None, :, None] + vitals[None, None, :]
        return TransitionChoices(probabilities, next_state.astype(jnp.int32), self.mechanism.reparameterization)

    def states(self, previous_action: Array, observation: Array) -> SepsisState:  # noqa: ARG002
        """The two states that look so: without diabetes, and with it."""
        return SepsisState(jnp.arange(2, dtype=jnp.int32), jnp.full(2, observation, jnp.int32))

    def initial_log_prob(self, state: SepsisState) -> Array:
        """The log-probability in the table, for states without treatment."""
        untreated = state.observed % NUM_TREATMENTS == 0
        log_prob = self.initial_logits[state.diabetic, state.observed // NUM_TREATMENTS]
        return jnp.where(untreated, log_prob, -jnp.inf)

    def transition_log_prob(self, state: SepsisState, action: Array, next_state: SepsisState) -> Array:
        """The log-probability in the table, where diabetes stays and the treatments are the action's."""
        treated = next_state.observed % NUM_TREATMENTS == kernel.treatment_bits(action)
        possible = treated & (next_state.diabetic == state.diabetic)
        vitals = next_state.observed // NUM_TREATMENTS
        log_prob = self.log_probs[state.diabetic, action, state.observed, vitals]
        return jnp.where(possible, log_prob, -jnp.inf)

    def initial_posterior(self, state: SepsisState, fresh: dict[str, Array]) -> dict[str, Array]:
        """Noise that chooses this diabetes and these vitals."""
        component, vitals = choice(self._discrete, 2), choice(self._discrete, NUM_VITALS)
        seen = state.observed // NUM_TREATMENTS
        return {
            "diabetic": component.posterior(self._component, state.diabetic, fresh["diabetic"]),
            "vitals": vitals.posterior(self._vitals(state.diabetic), seen, fresh["vitals"]),
        }

    def transition_posterior(self, state: SepsisState, action: Array, next_state: SepsisState, fresh: object) -> object:
        """As the reparameterization has it."""
        return self.mechanism.posterior(self._before(state, action), next_state.observed // NUM_TREATMENTS, fresh)

    @property
    def _component(self) -> Categorical:
        return Categorical(logits=jnp.log(jnp.exp(self.initial_logits).sum(1)))

    def _vitals(self, diabetic: Array) -> Categorical:
        return Categorical(logits=self.initial_logits[diabetic])

    def _before(self, state: SepsisState, action: Array) -> Before:
        log_probs = self.log_probs[state.diabetic, action, state.observed]
        return Before(state.diabetic, state.observed, action, log_probs)

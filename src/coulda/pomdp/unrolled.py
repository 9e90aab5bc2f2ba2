"""A POMDP under a policy, unrolled in time, as a generic SCM (Figure 1, right).

Nodes, for t = 1 … T: `S_t`, `O_t`, `H_t`, `A_t`, `R_t`, and the last `S_{T+1}`, `O_{T+1}`. `H_t` is the history
itself, the tuple (o_1, a_1, r_1, …, o_t), and `A_t = f_π(H_t, U_at)`, so that a change of policy is an
intervention on the actions alone. Meant for small horizons, for laws and for pictures: `rollout` is the fast way.
"""

from typing import Any

import jax
import jax.numpy as jnp

from coulda.noise import Point
from coulda.pomdp.actors import Policy
from coulda.pomdp.model import POMDP
from coulda.pomdp.scenario import Scenario, at_step
from coulda.scm import SCM, Intervention, Mechanism, do


def as_scm(model: POMDP, policy: Policy, horizon: int) -> SCM:
    """The SCM over trajectories of `horizon` steps that `model` and `policy` entail."""
    mechanisms = {
        "S_1": Mechanism((), model.initial),
        "O_1": Mechanism(("S_1",), model.observe),
        "H_1": Mechanism(("O_1",), lambda o, _: (o,)),
    }
    noise: dict[str, Any] = {"S_1": model.initial_noise, "O_1": model.observation_noise, "H_1": Point()}
    for t in range(1, horizon + 1):
        mechanisms |= _step(model, t)
        noise |= {
            f"A_{t}": model.action_mechanism.noise,
            f"S_{t + 1}": model.transition_noise,
            f"R_{t}": Point(),
            f"O_{t + 1}": model.observation_noise,
        }
        if t < horizon:
            parents = (f"H_{t}", f"A_{t}", f"R_{t}", f"O_{t + 1}")
            mechanisms[f"H_{t + 1}"] = Mechanism(parents, lambda h, a, r, o, _: (*h, a, r, o))
            noise[f"H_{t + 1}"] = Point()
    return SCM(noise, mechanisms | _action_mechanisms(model, policy, horizon))


def change_policy(model: POMDP, policy: Policy, horizon: int) -> Intervention:
    """I(μ → π): replace A_t = f_μ(H_t, U_at) by A_t = f_π(H_t, U_at), for every t."""
    return do(_action_mechanisms(model, policy, horizon))


def named_noise(scenario: Scenario, horizon: int) -> dict[str, Any]:
    """A scenario's noise under the node names of `as_scm`."""
    noise: dict[str, Any] = {"S_1": scenario.initial, "O_1": at_step(scenario.observation, 0)}
    for t in range(1, horizon + 1):
        noise |= {
            f"A_{t}": at_step(scenario.action, t - 1),
            f"S_{t + 1}": at_step(scenario.transition, t - 1),
            f"O_{t + 1}": at_step(scenario.observation, t),
            f"H_{t}": jnp.zeros(()),
            f"R_{t}": jnp.zeros(()),
        }
    return noise


def figure_1_positions(horizon: int) -> dict[str, tuple[float, float]]:
    """Where Figure 1 (right) puts the nodes, for `as_scm(...).draw(positions=...)`."""
    rows = {"S": (0.0, 0.0), "O": (1.2, 1.1), "H": (2.4, 2.2), "A": (3.6, 1.1), "R": (3.6, -1.1)}
    times = range(1, horizon + 2)
    places = {f"{k}_{t}": (x + 4.8 * (t - 1), y) for t in times for k, (x, y) in rows.items()}
    return {n: p for n, p in places.items() if n[0] in "SO" or not n.endswith(f"_{horizon + 1}")}


def _step(model: POMDP, t: int) -> dict[str, Mechanism]:
    def transition(state: Any, action: Any, u: Any) -> Any:
        moved, over = model.transition(state, action, u), model.terminal(state)
        return jax.tree.map(lambda new, old: jnp.where(over, old, new), moved, state)

    def reward(state: Any, action: Any, next_state: Any, _: Any) -> Any:
        return jnp.where(model.terminal(state), 0.0, model.reward(state, action, next_state))

    return {
        f"S_{t + 1}": Mechanism((f"S_{t}", f"A_{t}"), transition),
        f"R_{t}": Mechanism((f"S_{t}", f"A_{t}", f"S_{t + 1}"), reward),
        f"O_{t + 1}": Mechanism((f"S_{t + 1}",), model.observe),
    }


def _action_mechanisms(model: POMDP, policy: Policy, horizon: int) -> dict[str, Mechanism]:
    def action(history: tuple[Any, ...], u: Any) -> Any:
        carry, distribution = policy(policy.initial_carry(), history[0])
        for i in range(1, len(history), 3):
            past_action, reward, observation = history[i : i + 3]
            carry, distribution = policy(policy.remember(carry, past_action, reward), observation)
        return model.action_mechanism(distribution, u)

    return {f"A_{t}": Mechanism((f"H_{t}",), action) for t in range(1, horizon + 1)}

"""Generator A of the study of trust: thresholds may be tuned on its cases.

Tables are drawn from Dirichlet distributions, vectors move linearly, wrong models are mixed with the uniform.
"""

from dataclasses import replace
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from coulda.environments.linear_gaussian import LinearQuadratic
from coulda.mechanisms import choice
from coulda.policies import LinearGaussianPolicy, TabularPolicy
from coulda.pomdp import POMDP
from coulda.studies.trust_models import Habit, LinearWorld, Logistic, Store
from coulda.studies.trust_worlds import STATES, Case, Tables

NAMED = "gumbel_max"
FAMILIES = (
    *("mdp", "pomdp", "linear", "pomdp", "mdp", "contextual", "pomdp", "mdp", "nonlinear", "pump"),
    *("mdp", "pomdp", "inventory", "mdp", "pomdp", "linear", "contextual", "quadratic control", "mdp", "pomdp"),
)
"""In turn, so that every twenty cases have all of them."""
SHAPES = {
    "finite": (
        *((4, 1, 1000), (2, 1, 300), (2, 5, 100), (3, 5, 1000), (3, 5, 3000), (2, 10, 300), (2, 10, 1000)),
        *((3, 10, 3000), (2, 20, 300), (2, 20, 1000), (2, 20, 3000), (2, 5, 10_000), (2, 100, 300)),
    ),
    "contextual": ((2, 1, 300), (2, 1, 1000), (2, 1, 3000)),
    "vector": ((2, 5, 1000), (2, 10, 300), (2, 10, 1000), (2, 10, 3000), (2, 20, 300)),
    "inventory": ((3, 10, 300), (3, 10, 1000)),
    "pump": ((2, 20, 300), (2, 20, 1000)),
    "quadratic control": ((1, 5, 300), (1, 10, 1000)),
}
"""Actions, horizon and episodes: few, so that programs are shared."""
MIXED = {"10%": 0.1, "30%": 0.3, "60%": 0.6}
DISTANCE = {"near": 0.25, "middle": 0.6, "far": 1.0}


def case(seed: int, index: int) -> Case:
    """The case of this number."""
    rng = np.random.default_rng([seed, index, 0xA])
    family = FAMILIES[index % len(FAMILIES)]
    if family in ("mdp", "pomdp"):
        return _finite(rng, family)
    if family == "quadratic control":
        return _quadratic_control(rng)
    return _store(rng) if family == "inventory" else _vector(rng, family)


def _shared(
    rng: np.random.Generator, horizon: int, scale: float, *, ends: list[str], noisy: bool = True
) -> dict[str, Any]:
    """How a case is logged: ends, flags, noise in the rewards, probabilities."""
    end = str(rng.choice(ends))
    clocked = end in ("clock", "state and clock", "cut off")
    # Lengths from a third of the horizon to all of it.
    survival = np.clip((horizon - np.arange(horizon)) / (horizon - max(1, horizon // 3) + 1), 0, 1)
    flags = ["honest", "absent", "truncated"] if end == "fixed" else ["honest", "absent"]
    rewards = str(rng.choice(["plain", "normal", "student", "rare"], p=[0.7, 0.1, 0.12, 0.08])) if noisy else "plain"
    return {
        "ends": end,
        "survival": survival if clocked else np.ones(horizon),
        "flags": "honest" if end == "cut off" else str(rng.choice(flags)),
        "last_observation": str(rng.choice(["logged", "repeated"], p=[0.65, 0.35])),
        "rewards": rewards,
        "blur": scale * float(rng.uniform(0.5, 2)),
        "probabilities": str(rng.choice(["given", "fitted"], p=[0.8, 0.2])),
        "support": str(rng.choice(list(DISTANCE), p=[0.6, 0.2, 0.2])),
        "acts": str(rng.choice(["uniform", "memoryless", "memory"], p=[0.3, 0.4, 0.3])),
    }


def _ends(horizon: int) -> list[str]:
    """By which an episode of so many steps may end."""
    return ["fixed"] if horizon == 1 else ["fixed", "fixed", "state", "state", "clock", "state and clock", "cut off"]


def _finite(rng: np.random.Generator, family: str) -> Case:
    actions, horizon, episodes = SHAPES["finite"][rng.choice(13, p=[*[0.1] * 4, *[0.075] * 7, 0.045, 0.03])]
    shared = _shared(rng, horizon, 1.0, ends=_ends(horizon))
    if shared["rewards"] == "rare":
        shared["rewards"] = "jackpot"
    tables = _tables(rng, actions, horizon, family == "pomdp", shared)
    seen = STATES
    acts = rng.dirichlet(np.full(actions, 2.0), (actions + 1, seen))
    acts = {"uniform": np.full_like(acts, 1 / actions), "memory": acts}.get(
        shared["acts"], np.broadcast_to(acts[:1], acts.shape)
    )
    far = shared["support"] == "far"
    other = rng.dirichlet(np.full(actions, 0.2 if far else 1.0), seen)
    mixture = DISTANCE[shared["support"]]
    belief, model = _finite_belief(rng, tables, family == "pomdp", shared["ends"])
    # Rewards that are blurred agree with no table, so that nothing can be inferred from them.
    exact = shared["rewards"] in ("plain", "jackpot")
    return Case(
        family=family,
        environment=tables.world(horizon, NAMED),
        behavior=Habit(acts),
        target=TabularPolicy((1 - mixture) * acts.mean(0) + mixture * other),
        episodes=episodes,
        model=None if model is None else model.world(horizon, NAMED),
        belief=belief,
        hindsight=model is not None and exact and bool(rng.random() < 0.7),
        **shared,
    )


def _tables(rng: np.random.Generator, actions: int, horizon: int, hidden: bool, shared: dict[str, Any]) -> Tables:
    """Tables from Dirichlet distributions; the last state is the end, where there is one by state."""
    states = int(rng.integers(2, STATES))
    transition = rng.dirichlet(np.full(states, rng.choice([0.3, 1.0])), (actions, states))
    reward = rng.normal(size=(actions, states, 1)) + rng.normal(size=(1, 1, states))
    observation = rng.dirichlet(np.full(int(rng.integers(2, states + 1)), 0.4), states) if hidden else np.eye(states)
    initial = rng.dirichlet(np.ones(states))
    if shared["rewards"] == "jackpot":
        transition = 0.997 * transition + 0.003 * np.eye(states)[-1]
        transition[:, :, -1] = np.minimum(transition[:, :, -1], 0.003)
        transition /= transition.sum(-1, keepdims=True)
        reward = reward + 40 * np.eye(states)[-1]
    if shared["ends"] not in ("state", "state and clock"):
        return Tables(initial, transition, observation, reward, np.zeros(states, bool))
    leaves = rng.uniform(0, 2.5 / horizon, (actions, states, 1))
    transition = np.concatenate([(1 - leaves) * transition, leaves], -1)
    at_end = np.broadcast_to(np.eye(states + 1)[-1], (actions, 1, states + 1))
    reward = np.concatenate([reward, reward.mean(-1, keepdims=True) + 3 * rng.normal()], -1)
    return Tables(
        np.append(initial, 0),
        np.concatenate([transition, at_end], 1),
        np.block([[observation, np.zeros((states, 1))], [np.zeros((1, observation.shape[1])), np.ones((1, 1))]]),
        np.concatenate([reward, np.zeros_like(reward[:, :1])], 1),
        np.eye(states + 1)[-1].astype(bool),
    )


def _finite_belief(rng: np.random.Generator, tables: Tables, hidden: bool, ends: str) -> tuple[str, Tables | None]:
    """The model, and what is wrong with it."""
    clocked, states = ends in ("clock", "state and clock"), len(tables.initial)
    kinds = ["none", "right", "right", "right", "transition", "transition", "initial", "rewards"]
    kinds += ["observation"] * 3 * hidden + ["endless"] * bool(tables.terminal.any())
    kind = str(rng.choice(["none", "endless", "endless"] if clocked else kinds))
    if kind == "none":
        return kind, None
    amount = str(rng.choice(list(MIXED)))
    if kind == "transition":
        mixed = _mixed(tables.transition, MIXED[amount])
        mixed[:, tables.terminal] = tables.transition[:, tables.terminal]
        return f"transition {amount}", replace(tables, transition=mixed)
    if kind == "observation":
        mixed = _mixed(tables.observation, MIXED[amount])
        mixed[tables.terminal] = tables.observation[tables.terminal]
        return f"observation {amount}", replace(tables, observation=mixed)
    if kind == "initial":
        initial = 0.4 * tables.initial + 0.6 * rng.dirichlet(np.ones(states))
        initial = np.where(tables.terminal, 0, initial)
        return kind, replace(tables, initial=initial / initial.sum())
    if kind == "rewards":
        return kind, replace(tables, reward=tables.reward + rng.normal(0, 0.5, tables.reward.shape))
    if kind == "endless" and tables.terminal.any():
        stays = np.where(tables.terminal[:, None] == tables.terminal, tables.transition, 0)
        return kind, replace(tables, transition=stays / stays.sum(-1, keepdims=True))
    return kind, tables


def _mixed(table: np.ndarray, amount: float) -> np.ndarray:
    return (1 - amount) * table + amount / table.shape[-1]


def _vector(rng: np.random.Generator, family: str) -> Case:
    shapes = SHAPES.get(family, SHAPES["vector"])
    actions, horizon, episodes = shapes[rng.integers(len(shapes))]
    world = _pump(rng, actions, horizon) if family == "pump" else _linear(rng, family, actions, horizon)
    ends = _ends(horizon) if family != "pump" else ["state", "state and clock"]
    shared = _shared(rng, horizon, 0.5, ends=ends)
    if shared["ends"] in ("state", "state and clock") and family != "pump":
        size = float(rng.uniform(1.5, 3))
        world = replace(world, limit=jnp.asarray(size), failure=jnp.asarray(float(rng.normal())))
    elif family != "pump":
        world = replace(world, limit=jnp.asarray(jnp.inf))
    belief, model = _vector_belief(rng, world, shared["ends"])
    hindsight = model is not None and shared["rewards"] == "plain" and bool(rng.random() < 0.6)
    return Case(
        family=family,
        environment=world,
        episodes=episodes,
        model=model,
        belief=belief,
        hindsight=hindsight,
        **_logistic(rng, world.initial_mean.shape[0], actions, shared),
        **shared,
    )


def _linear(rng: np.random.Generator, family: str, actions: int, horizon: int) -> LinearWorld:
    """Stable linear dynamics in one dimension (contextual) or two; rewards by family."""
    size = 1 if family == "contextual" else 2
    matrices = rng.normal(size=(actions, size, size))
    matrices *= 0.9 / np.maximum(np.abs(np.linalg.eigvals(matrices)).max(-1), 0.5)[:, None, None]
    pay = (
        rng.normal(size=(actions, 5))
        * {
            "linear": [1, 1, 0.3, 0, 0],
            "nonlinear": [0.3, 0.3, 0, 1.5, 1],
            "contextual": [0.3, 0.3, 1, 0, 0],
        }[family]
    )
    return LinearWorld(
        initial_mean=jnp.asarray(rng.normal(0, 0.5, size) * (size > 1), float),
        initial_scale=jnp.ones(size),
        transition_scale=jnp.asarray(rng.uniform(0.2, 0.6, size), float),
        limit=jnp.asarray(jnp.inf),
        failure=jnp.zeros(()),
        horizon=horizon,
        num_actions=actions,
        action_mechanism=choice(NAMED, actions),
        matrices=jnp.asarray(matrices, float),
        drift=jnp.asarray(rng.normal(0, 0.3, (actions, size)), float),
        pay=jnp.asarray(pay, float),
    )


def _pump(rng: np.random.Generator, actions: int, horizon: int) -> LinearWorld:
    """One number, wear: it grows when the pump runs (0) and shrinks by service (1); at 1 the pump breaks."""
    return LinearWorld(
        initial_mean=jnp.full(1, 0.2),
        initial_scale=jnp.full(1, 0.05),
        transition_scale=jnp.asarray(rng.uniform(0.02, 0.06, 1), float),
        limit=jnp.ones(()),
        failure=jnp.asarray(float(-rng.uniform(2, 8))),
        horizon=horizon,
        num_actions=actions,
        action_mechanism=choice(NAMED, actions),
        matrices=jnp.asarray([[[1.0]], [[rng.uniform(0.2, 0.6)]]], float),
        drift=jnp.asarray([[rng.uniform(0.06, 0.12)], [0.02]], float),
        pay=jnp.asarray([[1.0, -rng.uniform(0, 0.5), -rng.uniform(0, 1), 0, 0], [rng.uniform(-0.5, 0.3), 0, 0, 0, 0]]),
    )


def _vector_belief(rng: np.random.Generator, world: LinearWorld, ends: str) -> tuple[str, POMDP | None]:
    if ends in ("clock", "state and clock"):
        return ("endless", world) if rng.random() < 0.6 else ("none", None)
    kind = str(rng.choice(["none", "right", "right", "dynamics", "dynamics", "initial", "rewards"]))
    if kind == "dynamics":
        slow = float(rng.choice([0.25, 0.6, 1.3]))
        return kind, replace(world, drift=slow * world.drift, matrices=world.matrices * (1 + 0.1 * (slow - 1)))
    if kind == "initial":
        return kind, replace(world, initial_mean=world.initial_mean + 0.8 * world.initial_scale)
    if kind == "rewards":
        return kind, replace(world, pay=world.pay * float(rng.choice([0.7, 1.2])))
    return kind, None if kind == "none" else world


def _logistic(rng: np.random.Generator, size: int, actions: int, shared: dict[str, Any]) -> dict[str, Any]:
    """Behavior and target over vectors."""
    scale = 0.0 if shared["acts"] == "uniform" else 0.7
    weight = scale * rng.normal(size=(actions, 1 + 2 * size))
    distance = {"near": 0.3, "middle": 0.9, "far": 4.0}[shared["support"]]
    other = weight + distance * rng.normal(size=weight.shape)
    sticky = 0.8 if shared["acts"] == "memory" else 0.0
    return {
        "behavior": Logistic(jnp.asarray(weight, float), jnp.asarray(sticky)),
        "target": Logistic(jnp.asarray(other, float), jnp.zeros(())),
    }


def _store(rng: np.random.Generator) -> Case:
    """A stock in units of mean demand: order nothing, a little or much."""
    shapes = SHAPES["inventory"]
    actions, horizon, episodes = shapes[rng.integers(len(shapes))]
    world = Store(
        up=jnp.asarray([0.0, 1.0, 2.0]),
        down=jnp.ones(()),
        spread=jnp.asarray(float(rng.uniform(0.3, 0.8))),
        room=jnp.asarray(4.0),
        start=jnp.asarray(float(rng.uniform(0.5, 2))),
        pay=jnp.asarray([rng.uniform(2, 5), -rng.uniform(0.5, 1.5), -rng.uniform(0.1, 0.6)]),
        horizon=horizon,
        queue=False,
        action_mechanism=choice(NAMED, actions),
    )
    shared = _shared(rng, horizon, 1.0, ends=["fixed", "fixed", "clock", "cut off"])
    kind = str(rng.choice(["none", "right", "right", "dynamics", "rewards"]))
    if shared["ends"] == "clock" and kind != "none":
        kind = "endless"
    demand = float(rng.choice([0.5, 0.8, 1.2]))
    models = {
        "none": None,
        "dynamics": eqx.tree_at(lambda w: w.down, world, jnp.asarray(demand)),
        "rewards": eqx.tree_at(lambda w: w.pay, world, world.pay * jnp.asarray([0.8, 1.0, 1.0])),
    }
    return Case(
        family="inventory",
        environment=world,
        episodes=episodes,
        model=models.get(kind, world),
        belief=kind,
        hindsight=False,
        **_logistic(rng, 1, actions, shared),
        **shared,
    )


def _quadratic_control(rng: np.random.Generator) -> Case:
    """Linear-quadratic control with actions that are numbers: weights and models only."""
    shapes = SHAPES["quadratic control"]
    _, horizon, episodes = shapes[rng.integers(len(shapes))]
    hidden = bool(rng.random() < 0.5)
    matrix = np.array([[0.9, 0.2], [0.0, 0.8]]) + rng.normal(0, 0.05, (2, 2))

    def world(push: float) -> LinearQuadratic:
        return LinearQuadratic(
            matrix,
            np.array([[0.0], [push]]),
            np.diag([1.0, 0.1]),
            [[0.1]],
            horizon=horizon,
            initial_mean=[1.0, 0.0],
            initial_scale=np.eye(2),
            transition_scale=0.3 * np.eye(2),
            C=np.eye(2) if hidden else None,
            observation_scale=0.4 * np.eye(2) if hidden else None,
        )

    shared = _shared(rng, horizon, 1.0, ends=["fixed"], noisy=False)
    shared |= {"probabilities": "given", "acts": "memoryless"}
    weight, distance = rng.normal(0, 0.2, (1, 2)), {"near": 0.1, "middle": 0.3, "far": 0.9}[shared["support"]]
    policies = [
        LinearGaussianPolicy(jnp.asarray(w, float), jnp.zeros(1), jnp.full(1, -0.3))
        for w in (weight, weight + distance * rng.normal(size=(1, 2)))
    ]
    belief = str(rng.choice(["right", "dynamics"]))
    return Case(
        family="quadratic control",
        environment=world(1.0),
        behavior=policies[0],
        target=policies[1],
        episodes=episodes,
        model=world(1.0 if belief == "right" else float(rng.choice([0.5, 1.4]))),
        belief=belief,
        hindsight=bool(rng.random() < 0.7),
        **shared,
    )

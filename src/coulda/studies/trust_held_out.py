"""Generator B of the study of trust: nothing is ever tuned on its cases, and the published numbers are of them.

It shares no draw with generator A: sparse graphs and walks, aliased observations, softmax policies, curved dynamics,
clocks of Weibull's kind, and models that are mixed with other worlds.
"""

from dataclasses import replace
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from scipy.special import softmax

from coulda.environments.linear_gaussian import LinearQuadratic
from coulda.mechanisms import choice
from coulda.policies import LinearGaussianPolicy, TabularPolicy
from coulda.pomdp import POMDP
from coulda.studies.trust_models import Fishery, Habit, Logistic, Store, TanhWorld
from coulda.studies.trust_worlds import STATES, Case, Tables

NAMED = "inverse_cdf"
FAMILIES = (
    "pomdp",
    "mdp",
    "tanh",
    "mdp",
    "contextual",
    "pomdp",
    "queue",
    "mdp",
    "fishery",
    "pomdp",
    "quadratic control",
)
FINITE = (
    *((3, 1, 3000), (2, 3, 300), (2, 4, 1000), (4, 6, 1000), (2, 8, 3000), (2, 12, 300), (3, 12, 1000)),
    *((2, 15, 100), (2, 20, 1000), (2, 3, 10_000), (2, 100, 300)),
)
"""Actions, horizon, episodes."""
TILT = {"near": 0.35, "middle": 1.0, "far": 5.0}
"""How far the target's logits are from the behavior's."""


def case(seed: int, index: int) -> Case:
    """The case of this number."""
    rng = np.random.default_rng([seed, index, 0xB])
    family = FAMILIES[index % len(FAMILIES)]
    makers = {
        "mdp": lambda: _finite(rng, hidden=False),
        "pomdp": lambda: _finite(rng, hidden=True),
        "tanh": lambda: _tanh(rng, family, *[(6, 300), (6, 1000), (12, 1000)][rng.integers(3)]),
        "contextual": lambda: _tanh(rng, family, *[(1, 300), (1, 3000)][rng.integers(2)]),
        "fishery": lambda: _fishery(rng, *[(15, 300), (15, 1000)][rng.integers(2)]),
        "queue": lambda: _queue(rng, *[(8, 300), (8, 3000)][rng.integers(2)]),
        "quadratic control": lambda: _quadratic_control(rng, *[(4, 1000), (8, 300)][rng.integers(2)]),
    }
    return makers[family]()


def _logged(rng: np.random.Generator, horizon: int, *, by_state: bool, scale: float) -> dict[str, Any]:
    """How a case is logged."""
    by_clock = horizon > 2 and rng.random() < 0.3
    end = ("state and clock" if by_clock else "state") if by_state else ("clock" if by_clock else "fixed")
    if by_clock and rng.random() < 0.25:
        end = "cut off"
    steps = np.arange(horizon)
    survival = np.exp(-((steps / (horizon * rng.uniform(0.6, 1.2))) ** rng.choice([1.0, 2.0])))
    draw = rng.random(5)
    return {
        "ends": end,
        "survival": survival if by_clock else np.ones(horizon),
        "flags": "absent" if draw[0] < 0.45 and end != "cut off" else "honest",
        "last_observation": "repeated" if draw[1] < 0.35 else "logged",
        "rewards": ("student", "rare", "normal")[int(draw[2] / 0.1)] if draw[2] < 0.3 else "plain",
        "blur": scale * float(rng.lognormal(0, 0.4)),
        "probabilities": "fitted" if draw[3] < 0.2 else "given",
        "support": "near" if draw[4] < 0.6 else "middle" if draw[4] < 0.8 else "far",
        "acts": ("memoryless", "uniform", "memory")[rng.integers(3)],
    } | ({"flags": "truncated"} if end == "fixed" and draw[0] > 0.8 else {})


def _finite(rng: np.random.Generator, *, hidden: bool) -> Case:
    actions, horizon, episodes = FINITE[rng.choice(len(FINITE), p=[*[0.1] * 9, 0.06, 0.04])]
    goal = horizon > 1 and bool(rng.random() < 0.45)
    tables = _walk(rng, actions, goal, horizon) if rng.random() < 0.5 else _graph(rng, actions, goal, horizon)
    if hidden:
        tables = _aliased(rng, tables)
    shared = _logged(rng, horizon, by_state=goal, scale=0.7)
    logits = rng.normal(0, 0 if shared["acts"] == "uniform" else 0.8, (STATES, actions))
    repeats = np.concatenate([1.2 * np.eye(actions), np.zeros((1, actions))]) * (shared["acts"] == "memory")
    tilted = logits + TILT[shared["support"]] * rng.normal(size=logits.shape)
    clocked = shared["ends"] in ("clock", "state and clock")
    belief, model = _believed(rng, tables, actions, hidden=hidden, clocked=clocked)
    return Case(
        family="pomdp" if hidden else "mdp",
        environment=tables.world(horizon, NAMED),
        behavior=Habit(softmax(logits + repeats[:, None], -1)),
        target=TabularPolicy(softmax(tilted, -1)),
        episodes=episodes,
        model=None if model is None else model.world(horizon, NAMED),
        belief=belief,
        hindsight=model is not None and shared["rewards"] == "plain" and bool(rng.random() < 0.65),
        **shared,
    )


def _walk(rng: np.random.Generator, actions: int, goal: bool, horizon: int) -> Tables:
    """A walk on a line: each action has its own drift; the goal is the right end, from where it may end."""
    states = int(rng.integers(3, STATES + 1))
    transition = np.zeros((actions, states, states))
    here = np.arange(states)
    for action in range(actions):
        right = rng.uniform(0.1, 0.7)
        left = rng.uniform(0, 1 - right)
        for step, chance in ((1, right), (-1, left), (0, 1 - right - left)):
            np.add.at(transition[action], (here, np.clip(here + step, 0, states - 1)), chance)
    reward = np.zeros((actions, states, states)) + rng.choice([-1.0, 0.0, 1.0], (1, 1, states))
    reward = reward - rng.exponential(0.3, (actions, 1, 1))
    start = softmax(rng.normal(0, 1, states) - 1e9 * (here == states - 1))
    return _with_goal(rng, Tables(start, transition, np.eye(states), reward, np.zeros(states, bool)), goal, horizon)


def _graph(rng: np.random.Generator, actions: int, goal: bool, horizon: int) -> Tables:
    """Two or three successors of each state and action, with rewards of an exponential distribution and a sign."""
    states = int(rng.integers(3, STATES + 1))
    transition = np.zeros((actions, states, states))
    for action in range(actions):
        for state in range(states):
            after = rng.choice(states, min(states, int(rng.integers(2, 4))), replace=False)
            transition[action, state, after] = softmax(rng.normal(0, 1, len(after)))
    signs = rng.choice([-1.0, 1.0], (actions, states, 1))
    reward = np.broadcast_to(signs * rng.exponential(1.0, (actions, states, 1)), transition.shape)
    start = softmax(rng.normal(0, 1, states) - 1e9 * (np.arange(states) == states - 1))
    return _with_goal(rng, Tables(start, transition, np.eye(states), reward, np.zeros(states, bool)), goal, horizon)


def _with_goal(rng: np.random.Generator, tables: Tables, goal: bool, horizon: int) -> Tables:
    """The last state as an end that is reached by chance, less often from the others than the tables say."""
    if not goal:
        return tables
    transition, last = tables.transition.copy(), np.eye(len(tables.initial))[-1]
    rate = rng.beta(1.5, 0.8 * horizon)
    transition[..., -1] = 0
    stuck = transition.sum(-1, keepdims=True) == 0
    transition = np.where(stuck, np.eye(len(last)), transition)
    transition = (1 - rate) * transition / transition.sum(-1, keepdims=True) + rate * last
    transition[:, -1] = last
    reward = tables.reward + rng.normal(0, 3) * last
    reward[:, -1] = 0
    return replace(tables, transition=transition, reward=reward, terminal=last.astype(bool))


def _aliased(rng: np.random.Generator, tables: Tables) -> Tables:
    """Several states look alike, and sometimes like another; an end does not."""
    states = len(tables.initial)
    looks = max(2, states // 2)
    seen = np.eye(looks)[rng.integers(0, looks, states)]
    noise = float(rng.choice([0.0, 0.1, 0.3]))
    seen = (1 - noise) * seen + noise / looks
    seen = np.concatenate([seen, np.zeros((states, 1))], 1)
    seen[tables.terminal] = np.eye(looks + 1)[-1]
    return replace(tables, observation=seen)


def _believed(
    rng: np.random.Generator, tables: Tables, actions: int, *, hidden: bool, clocked: bool
) -> tuple[str, Tables | None]:
    """The model, and what is wrong with it."""
    if clocked:
        return ("endless", tables) if rng.random() < 0.65 else ("none", None)
    options = {"none": 1, "right": 4, "transition": 3, "initial": 1, "rewards": 1}
    options |= {"observation": 3} if hidden else {}
    options |= {"endless": 1} if tables.terminal.any() else {}
    kind = str(rng.choice(list(options), p=np.array(list(options.values())) / sum(options.values())))
    amount = float(rng.choice([0.1, 0.3, 0.6]))
    live = ~tables.terminal
    if kind == "transition":
        states = len(tables.initial)
        uniform = np.full_like(tables.transition, 1 / states)
        other = uniform if rng.random() < 0.5 else rng.gamma(0.7, 1, (actions, states, states)) + 1e-3
        mixed = (1 - amount) * tables.transition + amount * other / other.sum(-1, keepdims=True)
        return f"transition {amount:.0%}", replace(tables, transition=np.where(live[:, None], mixed, tables.transition))
    if kind == "observation":
        # The last look is the end's alone.
        turned = np.concatenate([np.roll(tables.observation[:, :-1], 1, 1), tables.observation[:, -1:]], 1)
        mixed = (1 - amount) * tables.observation + amount * turned
        return f"observation {amount:.0%}", replace(
            tables, observation=np.where(live[:, None], mixed, tables.observation)
        )
    if kind == "initial":
        start = np.where(live, tables.initial**0.3 * rng.random(len(live)), 0)
        return kind, replace(tables, initial=start / start.sum())
    if kind == "rewards":
        return kind, replace(tables, reward=tables.reward * rng.choice([0.8, 1.0, 1.5], (1, len(live), 1)))
    if kind == "endless":
        stays = np.where(live[:, None] & tables.terminal, 0, tables.transition)
        return kind, replace(tables, transition=stays / stays.sum(-1, keepdims=True))
    return kind, None if kind == "none" else tables


def _vector_case(
    rng: np.random.Generator, family: str, world: Any, wrong: dict[str, Any], shared: dict[str, Any]
) -> Case:
    """A case of a world of vectors, with its wrong models by name."""
    actions, size = int(world.action_space.n), world.observation_space.shape[0]
    weight = rng.normal(0, 0 if shared["acts"] == "uniform" else 0.5, (actions, 1 + 2 * size))
    tilted = weight + 0.8 * TILT[shared["support"]] * rng.standard_t(6, weight.shape)
    kind = str(rng.choice(["none", "right", "right", *wrong, *wrong]))
    if shared["ends"] in ("clock", "state and clock") and kind != "none":
        kind = "endless"
    model: POMDP | None = None if kind == "none" else wrong.get(kind, world)
    return Case(
        family=family,
        environment=world,
        behavior=Logistic(jnp.asarray(weight, float), jnp.asarray(1.0 if shared["acts"] == "memory" else 0.0)),
        target=Logistic(jnp.asarray(tilted, float), jnp.zeros(())),
        model=model,
        belief=kind,
        hindsight=model is not None and shared["rewards"] == "plain" and family != "queue" and bool(rng.random() < 0.6),
        **shared,
    )


def _tanh(rng: np.random.Generator, family: str, horizon: int, episodes: int) -> Case:
    """Saturating dynamics in three dimensions and a reward that is a small network; of one step a bandit."""
    actions, size = 3, 3
    limited = horizon > 1 and bool(rng.random() < 0.4)
    world = TanhWorld(
        initial_mean=jnp.zeros(size),
        initial_scale=jnp.ones(size),
        transition_scale=jnp.full(size, rng.uniform(0.2, 0.5)),
        limit=jnp.asarray(rng.uniform(1.5, 2.5) if limited else np.inf),
        failure=jnp.asarray(-rng.exponential(2.0)),
        horizon=horizon,
        num_actions=actions,
        action_mechanism=choice(NAMED, actions),
        matrices=jnp.asarray(rng.uniform(-0.8, 0.8, (actions, size, size)), float),
        drift=jnp.asarray(rng.uniform(-0.4, 0.4, (actions, size)), float),
        inner=jnp.asarray(rng.normal(0, 1.5, (4, size)), float),
        outer=jnp.asarray(rng.normal(0, 0.8, (actions, 4)), float),
        cost=jnp.asarray(rng.uniform(0, 1, actions) * rng.integers(0, 2), float),
    )
    wrong = {
        "dynamics": replace(world, matrices=world.matrices * 0.7, drift=world.drift + float(rng.choice([-0.2, 0.2]))),
        "initial": replace(world, initial_scale=1.5 * world.initial_scale),
        "rewards": replace(world, outer=world.outer + jnp.asarray(rng.normal(0, 0.3, (actions, 4)), float)),
    }
    shared = _logged(rng, horizon, by_state=limited, scale=0.5) | {"episodes": episodes}
    return _vector_case(rng, family, world, wrong, shared)


def _fishery(rng: np.random.Generator, horizon: int, episodes: int) -> Case:
    """Catch nothing, some or much of a stock that may collapse."""
    world = Fishery(
        initial_mean=jnp.zeros(1),
        initial_scale=jnp.full(1, 0.2),
        transition_scale=jnp.full(1, rng.uniform(0.1, 0.3)),
        limit=jnp.asarray(rng.uniform(1.2, 2.0)),
        failure=jnp.asarray(-rng.uniform(0, 3)),
        horizon=horizon,
        num_actions=3,
        action_mechanism=choice(NAMED, 3),
        growth=jnp.asarray(rng.uniform(0.2, 0.6)),
        harvest=jnp.asarray([0.0, 0.25, 0.6]),
        price=jnp.asarray(rng.uniform(1, 4)),
    )
    wrong = {
        "dynamics": replace(world, growth=world.growth * float(rng.choice([0.5, 1.3, 2.0]))),
        "initial": replace(world, initial_mean=jnp.full(1, -0.3)),
        "rewards": replace(world, price=1.15 * world.price),
    }
    shared = _logged(rng, horizon, by_state=True, scale=0.3) | {"episodes": episodes}
    return _vector_case(rng, "fishery", world, wrong, shared)


def _queue(rng: np.random.Generator, horizon: int, episodes: int) -> Case:
    """Serve slowly or fast, at a price, those who wait, at another."""
    world = Store(
        up=jnp.asarray([0.6, 1.5]),
        down=jnp.asarray(rng.uniform(0.7, 1.2)),
        spread=jnp.asarray(rng.uniform(0.4, 1.0)),
        room=jnp.asarray(5.0),
        start=jnp.ones(()),
        pay=jnp.asarray([0.0, -rng.uniform(0.3, 1), -rng.uniform(0.2, 1)]),
        horizon=horizon,
        queue=True,
        action_mechanism=choice(NAMED, 2),
    )
    arrivals = float(rng.choice([0.6, 0.85, 1.3]))
    wrong = {
        "dynamics": eqx.tree_at(lambda w: w.down, world, arrivals * world.down),
        "initial": eqx.tree_at(lambda w: w.start, world, jnp.asarray(2.0)),
    }
    shared = _logged(rng, horizon, by_state=False, scale=0.4) | {"episodes": episodes}
    return _vector_case(rng, "queue", world, wrong, shared)


def _quadratic_control(rng: np.random.Generator, horizon: int, episodes: int) -> Case:
    """Two hidden numbers of which one is seen through noise; actions are numbers."""
    angle = rng.uniform(0.1, 0.6)
    turn = 0.9 * np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])

    def world(scale: float) -> LinearQuadratic:
        return LinearQuadratic(
            scale * turn,
            [[0.3], [0.7]],
            np.eye(2),
            [[0.2]],
            horizon=horizon,
            initial_mean=[0.0, 1.0],
            initial_scale=0.7 * np.eye(2),
            transition_scale=0.25 * np.eye(2),
            C=[[1.0, 0.0]],
            observation_scale=[[0.3]],
        )

    shared: dict[str, Any] = _logged(rng, horizon, by_state=False, scale=1.0)
    shared |= {"probabilities": "given", "acts": "memoryless"}
    shared |= {"ends": "fixed", "survival": np.ones(horizon), "rewards": "plain"}
    gain = rng.uniform(-0.4, 0.1)
    moved = gain + 0.3 * TILT[shared["support"]] * rng.choice([-0.5, 0.5])
    behavior, target = (
        LinearGaussianPolicy(jnp.full((1, 1), g), jnp.zeros(1), jnp.full(1, -0.5)) for g in (gain, moved)
    )
    belief = str(rng.choice(["right", "dynamics"]))
    return Case(
        family="quadratic control",
        environment=world(1.0),
        behavior=behavior,
        target=target,
        episodes=episodes,
        model=world(1.0 if belief == "right" else float(rng.choice([0.8, 1.08]))),
        belief=belief,
        hindsight=bool(rng.random() < 0.7),
        **shared,
    )

"""What a model's states look like: `View`s, one for each kind of model here, and how to write one of your own.

A view has two functions, of one state and of one observation, that give either a grid of tile numbers or a vector of
channels, as its scene says. Nothing else in the report knows any model.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces
from jax import Array
from msgspec.structs import replace as replace_struct

from coulda.environments.sepsis import Sepsis, SepsisState
from coulda.environments.sepsis.kernel import NUM_OBSERVED, treatments_by, treatments_of, vitals_of
from coulda.environments.sokoban import Sokoban, tiles
from coulda.episodes import Schema
from coulda.fitting import FittedTable, FittedVectors
from coulda.pomdp import POMDP, BlackBoxPOMDP, FinitePOMDP, LinearGaussianPOMDP
from coulda.report.contents import Channel, GridScene, SeriesScene
from coulda.report.sprites import SOKOBAN_TILES

MOST_CHANNELS = 16
"""More lines than these nobody reads."""
MOST_LEVELS = 12
"""Levels of a line that have a label each."""
BEYOND = ("over", "never tried")
"""The last states of a fitted table."""


@dataclass(frozen=True)
class View:
    """How to show a model. The functions are traced by JAX, but for `action`."""

    scene: GridScene | SeriesScene
    state: Callable[[Any], Array]
    """The picture of one state: `[height, width]` of tile numbers, or `[C]` of channels."""
    observation: Callable[[Any], Array]
    """The picture of one observation, likewise; NaN for channels that are not observed."""
    action: Callable[[Any], str]
    """The name of one action."""


def view_of(model: POMDP, schema: Schema | None = None) -> View:
    """The view of a model that is known here; every other one's states as plain numbers over time.

    With the schema of a log, actions and channels are called as in it, where they had no names of their own.
    """
    view = _view_of(model)
    return view if schema is None else _called(view, schema)


def _called(view: View, schema: Schema) -> View:
    """The view with the names of a log."""
    actions, names, scene = schema.action_names, schema.observation_names, view.scene
    if actions and view.action is _numbers and isinstance(schema.action_space, spaces.Discrete):
        view = replace(view, action=lambda action: actions[int(action)])
    if not isinstance(scene, SeriesScene) or not names:
        return view
    channels = scene.channels
    if len(channels) == len(names) and not any(channel.hidden for channel in channels):
        channels = tuple(replace_struct(one, name=name) for one, name in zip(channels, names, strict=True))
    elif len(channels) == 1 and channels[0].labels[len(names) :] == BEYOND:
        channels = (replace_struct(channels[0], labels=(*names, *BEYOND)),)
    else:  # categories
        labeled = lambda one: replace_struct(one, labels=names) if len(one.labels) == len(names) else one
        channels = tuple(map(labeled, channels))
    return replace(view, scene=SeriesScene(channels))


def _view_of(model: POMDP) -> View:
    if isinstance(model, Sokoban):
        return sokoban_view(model)
    if isinstance(model, Sepsis):
        return sepsis_view()
    if isinstance(model, LinearGaussianPOMDP):
        return linear_gaussian_view(model)
    if isinstance(model, FittedTable):
        return table_view(model)
    if isinstance(model, FittedVectors):
        return vectors_view(model)
    if isinstance(model, FinitePOMDP):
        return finite_view(model)
    if isinstance(model, BlackBoxPOMDP):
        return black_box_view(model)
    return numbers_view(model)


def sokoban_view(model: Sokoban) -> View:
    """Grids. A tile that looks empty may also be masked, except near the agent."""
    hidden = len(SOKOBAN_TILES) - 1

    def seen(observation: Array) -> Array:
        observation = observation.astype(jnp.uint8)  # logs hold categories as int32
        doubtful = (observation == tiles.EMPTY) & ~model.in_window(observation)
        return jnp.where(doubtful, jnp.uint8(hidden), observation)

    scene = GridScene(model.height, model.width, SOKOBAN_TILES)
    names = [f"{arrow} {name}" for arrow, name in zip("↑↓←→·", tiles.ACTION_NAMES, strict=True)]
    return View(scene, lambda state: state, seen, lambda action: names[int(action)])


def sepsis_view() -> View:
    """Vitals, treatments, and the diabetes that nobody sees."""
    three = ("low", "normal", "high")
    levels = {"heart rate": three, "blood pressure": three, "oxygen": ("low", "normal")}
    levels |= {"glucose": ("very low", "low", "normal", "high", "very high")}
    given = dict.fromkeys(("antibiotics", "vasopressors", "ventilation"), ("off", "on"))
    channels = [Channel(name, labels) for name, labels in (levels | given).items()]

    def state(state: SepsisState) -> Array:
        return jnp.append(observed(state.observed), state.diabetic.astype(jnp.float32))

    def observed(number: Array) -> Array:
        return jnp.stack([x.astype(jnp.float32) for x in (*vitals_of(number), *treatments_of(number))])

    def observation(number: Array) -> Array:
        return jnp.append(observed(number % NUM_OBSERVED), jnp.float32(jnp.nan))

    def action(number: Any) -> str:
        on = [name for name, value in treatments_by(jnp.asarray(number))._asdict().items() if value]
        return " + ".join(on) or "nothing"

    scene = SeriesScene((*channels, Channel("diabetes", ("no", "yes"), hidden=True)))
    return View(scene, state, observation, action)


def linear_gaussian_view(model: LinearGaussianPOMDP) -> View:
    """The components of the state and, where it is hidden, its readings C s, against which the log's are set."""
    size = model.A.shape[0]
    names = [Channel(f"s{_subscript(i)}", hidden=model.C is not None) for i in range(size)]
    C = model.C
    if C is None:
        return View(SeriesScene(tuple(names)), lambda state: state, lambda observation: observation, _numbers)
    names += [Channel(f"o{_subscript(i)}") for i in range(C.shape[0])]
    return View(
        SeriesScene(tuple(names)),
        lambda state: jnp.concatenate([state, C @ state]),
        lambda observation: jnp.concatenate([jnp.full(size, jnp.nan), observation]),
        _numbers,
    )


def finite_view(model: FinitePOMDP) -> View:
    """The number of the state, and that of the observation, which is known of the log alone."""
    names = lambda count: tuple(str(i) for i in range(count)) if count <= MOST_LEVELS else ()
    seen = model.observation_space
    labels = names(int(seen.n)) if isinstance(seen, spaces.Discrete) else ()
    scene = SeriesScene((Channel("state", names(model.num_states), hidden=True), Channel("observation", labels)))
    return View(
        scene,
        lambda state: jnp.stack([state.index.astype(jnp.float32), jnp.float32(jnp.nan)]),
        lambda observation: jnp.stack([jnp.float32(jnp.nan), _flat(observation)[0]]),
        _numbers,
    )


def table_view(model: FittedTable) -> View:
    """What was seen, which is the state; and the two places that no log has seen."""
    names = (*(str(i) for i in range(model.seen)), *BEYOND) if model.seen <= MOST_LEVELS else ()
    scene, ends = SeriesScene((Channel("state", names),)), model.num_states - len(BEYOND)

    def state(state: Any) -> Array:
        place = jnp.where(state.index < ends, state.index % model.seen, model.seen + state.index - ends)
        return place.astype(jnp.float32)[None]

    return View(scene, state, lambda seen: jnp.asarray(seen, jnp.float32)[None], _numbers)


def vectors_view(model: FittedVectors) -> View:
    """What was seen, which is the state."""
    scene = SeriesScene(tuple(Channel(f"s{_subscript(i)}") for i in range(min(model.size, MOST_CHANNELS))))
    first = lambda seen: seen[:MOST_CHANNELS].astype(jnp.float32)
    return View(scene, lambda state: first(state.seen), first, _numbers)


def black_box_view(model: BlackBoxPOMDP) -> View:
    """What is seen of it, which is all that is known of its state."""
    seen = jax.eval_shape(lambda: jax.tree.map(jnp.asarray, model.observation_space.sample()))
    scene = SeriesScene(tuple(Channel(name) for name in _names(seen, "observation")[:MOST_CHANNELS]))
    first = lambda tree: _flat(tree)[:MOST_CHANNELS]
    return View(scene, lambda state: first(state.observation), first, _numbers)


def numbers_view(model: POMDP) -> View:
    """The first numbers of the state, each a channel; those of the observation too, unless it is like the state."""
    state = jax.eval_shape(lambda: model.initial(model.initial_noise.sample(jax.random.key(0))))
    seen = jax.eval_shape(lambda: jax.tree.map(jnp.asarray, model.observation_space.sample()))
    names = _names(state)[:MOST_CHANNELS]
    first = lambda tree: _flat(tree)[: len(names)]
    if jax.tree.map(jnp.shape, seen) == jax.tree.map(jnp.shape, state):
        return View(SeriesScene(tuple(map(Channel, names))), first, first, _numbers)
    shown = _names(seen, "observation")[: MOST_CHANNELS - len(names)]
    nothing = lambda these: jnp.full(len(these), jnp.nan)
    scene = SeriesScene((*(Channel(name, hidden=True) for name in names), *map(Channel, shown)))
    return View(
        scene,
        lambda state: jnp.concatenate([first(state), nothing(shown)]),
        lambda observation: jnp.concatenate([nothing(names), _flat(observation)[: len(shown)]]),
        _numbers,
    )


def _names(tree: Any, whole: str = "state") -> list[str]:
    """One for each number of a tree."""
    found = []
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        name = jax.tree_util.keystr(path).lstrip(".") or whole
        found += [name] if not leaf.shape else [f"{name} {i}" for i in range(int(np.prod(leaf.shape)))]
    return found


def _flat(tree: Any) -> Array:
    return jnp.concatenate([jnp.ravel(leaf).astype(jnp.float32) for leaf in jax.tree.leaves(tree)])


def _numbers(action: Any) -> str:
    return ", ".join(f"{number:.3g}" for number in np.ravel(action))


def _subscript(index: int) -> str:
    return str(index + 1).translate(str.maketrans("0123456789", "₀₁₂₃₄₅₆₇₈₉"))

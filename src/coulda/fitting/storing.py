"""Fitted models as artifacts: what was fitted, what it rests on, and the verdict, in one folder."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import jax.numpy as jnp
import msgspec
import numpy as np

from coulda.episodes.spaces import Spec, spec_of
from coulda.evaluation import Diagnostic
from coulda.evaluation.estimate import Verdict
from coulda.fitting.fitted import Fitted, Recipe
from coulda.fitting.folds import Folds
from coulda.fitting.grounds import HiddenGrounds, Nearness, TableGrounds, VectorGrounds
from coulda.fitting.hidden import FittedHidden, HiddenFit
from coulda.fitting.neural import NeuralFit, skeleton
from coulda.fitting.source import CrossFitted
from coulda.fitting.systems import FittedSystem, template
from coulda.fitting.tabular import LARGEST_TABLE, Counts, TabularFit
from coulda.fitting.vectors import FittedVectors, Scales
from coulda.hindsight import Exact
from coulda.storage import MANIFEST, ArtifactError, Kind, load_weights, read_artifact, save_tree, write_artifact
from coulda.trainer.checkpoints import plain

_RECIPES: dict[str, type[Recipe]] = {"tabular": TabularFit, "neural": NeuralFit, "hidden": HiddenFit}
_NUMBERS = "numbers.safetensors"


class Found(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A `Diagnostic`; None where its value is not finite."""

    name: str
    value: float | None
    verdict: Verdict
    sentence: str


class FittedMetadata(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a fitted model says about itself, beside its numbers."""

    recipe: str
    settings: dict[str, Any]
    observations: Spec
    actions: Spec
    horizon: Annotated[int, msgspec.Meta(ge=1, le=2**20)]
    sizes: dict[str, Annotated[int, msgspec.Meta(ge=0)]]
    """Of arrays, by name."""
    verdict: list[Found]
    summary: list[str]
    log: str


FITTED = Kind("fitted model", 2, FittedMetadata)


def save_fitted(path: Path | str, fitted: Fitted) -> None:
    """Commit a fitted model at `path`, which must not exist yet."""
    model, (numbers, sizes) = fitted.model, _numbers(fitted)
    name = next(name for name, kind in _RECIPES.items() if isinstance(fitted.recipe, kind))
    metadata = FittedMetadata(
        name,
        asdict(fitted.recipe),
        spec_of(model.observation_space),
        spec_of(model.action_space),
        model.horizon,
        sizes,
        [
            Found(d.name, float(d.value) if np.isfinite(d.value) else None, d.verdict, d.sentence)
            for d in fitted.verdict
        ],
        list(fitted.summary),
        fitted.log,
    )
    write_artifact(Path(path), FITTED, [(_NUMBERS, save_tree(numbers))], metadata)


def load_fitted(path: Path | str) -> Fitted:
    """The fitted model at `path`; anything else raises `coulda.storage.ArtifactError`."""
    artifact = read_artifact(Path(path), FITTED)
    found, data = artifact.metadata, artifact.only(_NUMBERS)
    if found.recipe not in _RECIPES:
        raise ArtifactError(f"{path}: expected a recipe of {sorted(_RECIPES)}, found '{found.recipe}'; fit it anew")
    make = {"tabular": _table, "neural": _vectors, "hidden": _hidden}[found.recipe]
    verdict = tuple(
        Diagnostic(d.name, float("nan") if d.value is None else d.value, d.verdict, d.sentence) for d in found.verdict
    )
    try:
        recipe = msgspec.convert(found.settings, type=_RECIPES[found.recipe])
        _check_sizes(found, recipe, len(data))
        model, source, grounds = make(found, recipe, verdict, data)
    except (ValueError, TypeError, KeyError, IndexError, AssertionError, OverflowError) as error:
        raise ArtifactError(f"{path}: its model cannot be built: {error!r}; fit it anew") from error
    fitted = Fitted(recipe, model, source, grounds, tuple(found.summary), found.log)
    spaces = spec_of(model.observation_space), spec_of(model.action_space)
    if (*spaces, plain(asdict(recipe)), _numbers(fitted)[1]) != (
        found.observations, found.actions, found.settings, found.sizes
    ):  # fmt: skip
        raise ArtifactError(f"{path}: it is not of the spaces, settings and sizes that it names; fit it anew")
    return fitted


def _check_sizes(found: FittedMetadata, recipe: Any, stored: int) -> None:
    """Refuse to make arrays that are larger than what is stored: the sizes may say anything."""
    sizes, actions = found.sizes, found.actions.space()
    controls, seen = _width(actions), _width(found.observations.space())
    needed = max(sizes.values(), default=0)
    if found.recipe == "tabular":
        needed = max(sizes["moves"], sizes["states"])
        if 4 * sizes["states"] ** 2 * sizes["actions"] > 2 * LARGEST_TABLE:
            raise ArtifactError(f"a table of {sizes['actions']} actions and {sizes['states']} states is too large")
    elif found.recipe == "neural":
        needed = max(needed, max(recipe.folds * sizes["size"], sizes["near"]) * (sizes["size"] + controls))
    else:
        needed = max(needed, recipe.states**2, recipe.states * max(controls, seen))
    if needed > stored:
        raise ArtifactError(f"{stored} bytes do not hold {needed} numbers")


def _width(space: Any) -> int:
    return int(space.n) if hasattr(space, "n") else int(np.prod(space.shape or ()))


def found_at(place: str) -> Fitted | None:
    """The fitted model in the folder `place`; None where that is no folder of ours, such as the name of an object."""
    return load_fitted(place) if (Path(place) / MANIFEST).exists() else None


def _numbers(fitted: Fitted) -> tuple[Any, dict[str, int]]:
    """The arrays that it takes to make the model again, and their sizes."""
    grounds = fitted.grounds
    if isinstance(grounds, TableGrounds):
        counts = grounds.counts
        sizes = {"moves": len(counts.number), "states": counts.states, "actions": counts.actions, "seen": counts.seen}
        return _columns(counts), sizes | {"twins": int(counts.twins), "varies": int(counts.varies)}
    if isinstance(grounds, VectorGrounds):
        assert isinstance(fitted.source, CrossFitted)
        model, folds = grounds.model, fitted.source.folds
        numbers = {"model": model, "folds": folds, "near": vars(grounds.near), "on_log": grounds.on_log}
        sizes = {"first": len(model.first), "episodes": len(folds.digests), "size": model.size}
        return numbers, sizes | {"near": len(grounds.near.steps)}
    assert isinstance(grounds, HiddenGrounds)
    return {"model": fitted.model, "members": list(grounds.members)}, {"members": len(grounds.members)}


def _columns(counts: Counts) -> dict[str, np.ndarray]:
    names = ("place", "number", "reward", "initial", "terminal")
    return {name: np.ascontiguousarray(getattr(counts, name)) for name in names}


def _table(found: FittedMetadata, recipe: TabularFit, verdict: tuple[Diagnostic, ...], data: bytes) -> tuple[Any, ...]:
    moves, states = found.sizes["moves"], found.sizes["states"]
    empty = {
        "place": np.zeros((moves, 3), int),
        "number": np.zeros(moves, int),
        "reward": np.zeros(moves),
        "initial": np.zeros(states),
        "terminal": np.zeros(states, bool),
    }
    columns, sizes = load_weights(data, empty), found.sizes
    twins, varies = bool(sizes["twins"]), bool(sizes["varies"])
    place, number, reward, initial, terminal = (columns[name] for name in empty)
    counts = Counts(
        place, number, reward, initial, sizes["actions"], states, sizes["seen"], twins, varies, terminal, found.horizon
    )
    model = counts.model(counts.number + recipe.prior, counts.initial, recipe.reparameterization)
    return model, Exact(model), TableGrounds(verdict, model, counts, recipe)


def _vectors(found: FittedMetadata, recipe: NeuralFit, verdict: tuple[Diagnostic, ...], data: bytes) -> tuple[Any, ...]:
    size, actions = found.sizes["size"], found.actions.space()
    controls = _width(actions)
    vector, control, one = jnp.zeros(size), jnp.zeros(controls), jnp.zeros(())
    scales = Scales(vector, vector, vector, vector, vector, control, control, one, one)
    order = tuple(range(size)) if recipe.order is None else recipe.order
    first = np.zeros((found.sizes["first"], size), np.float32)
    model = skeleton(size, actions, recipe, found.horizon, order, scales, first, False)
    episodes = found.sizes["episodes"]
    folds = Folds(
        jnp.zeros(episodes, jnp.uint32), jnp.zeros(episodes, jnp.int32), jnp.zeros(episodes, bool), recipe.folds
    )
    every = size + controls
    near = {"steps": np.zeros((found.sizes["near"], every)), "apart": np.zeros(every), "reach": 0.0}
    numbers = load_weights(data, {"model": model, "folds": folds, "near": near, "on_log": 0.0})
    model = numbers["model"]
    assert isinstance(model, FittedVectors)
    grounds = VectorGrounds(verdict, model, numbers["on_log"], Nearness(**numbers["near"]), numbers["folds"])
    return model, CrossFitted(model, numbers["folds"]), grounds


def _hidden(found: FittedMetadata, recipe: HiddenFit, verdict: tuple[Diagnostic, ...], data: bytes) -> tuple[Any, ...]:
    empty = _hidden_template(found, recipe)
    # Where episodes never begin, and what never follows, has the logarithm of zero.
    numbers = load_weights(data, {"model": empty, "members": [empty] * found.sizes["members"]}, infinite=True)
    model = numbers["model"]
    return model, Exact(model), HiddenGrounds(verdict, tuple(numbers["members"]))


def _hidden_template(found: FittedMetadata, recipe: HiddenFit) -> FittedHidden | FittedSystem:
    observations, actions = found.observations.space(), found.actions.space()
    if not hasattr(actions, "n"):
        assert observations.shape is not None
        assert actions.shape is not None
        return template(recipe.states, observations.shape[0], actions.shape[0], found.horizon)
    states, seen, done = recipe.states + 1, int(observations.n), int(actions.n)  # pyright: ignore
    return FittedHidden(
        np.full(states, 1 / states),
        np.full((done, states, states), 1 / states),
        np.full((states, seen), 1 / seen),
        np.zeros((done, states, states)),
        horizon=found.horizon,
        reparameterization=recipe.reparameterization,
    )

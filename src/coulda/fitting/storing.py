"""Fitted models as artifacts: what was fitted, what it rests on, and the verdict, in one folder."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import msgspec
import numpy as np

from coulda.episodes.spaces import Spec, spec_of
from coulda.evaluation import Diagnostic
from coulda.fitting.fitted import Fitted, Recipe
from coulda.fitting.folds import Folds
from coulda.fitting.grounds import HiddenGrounds, Nearness, TableGrounds, VectorGrounds
from coulda.fitting.hidden import FittedHidden, HiddenFit
from coulda.fitting.neural import NeuralFit, skeleton
from coulda.fitting.source import CrossFitted
from coulda.fitting.systems import FittedSystem, template
from coulda.fitting.tabular import Counts, TabularFit
from coulda.fitting.vectors import FittedVectors, Scales
from coulda.hindsight import Exact
from coulda.storage import MANIFEST, ArtifactError, Kind, load_tree, read_artifact, save_tree, write_artifact

_RECIPES: dict[str, type[Recipe]] = {"tabular": TabularFit, "neural": NeuralFit, "hidden": HiddenFit}
_NUMBERS = "numbers.safetensors"


class FittedMetadata(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a fitted model says about itself, beside its numbers."""

    recipe: str
    settings: dict[str, Any]
    observations: Spec
    actions: Spec
    horizon: int
    sizes: dict[str, int]
    """Of arrays, by name."""
    verdict: list[dict[str, Any]]
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
        [asdict(d) | {"value": float(d.value) if np.isfinite(d.value) else None} for d in fitted.verdict],
        list(fitted.summary),
        fitted.log,
    )
    write_artifact(Path(path), FITTED, [(_NUMBERS, save_tree(numbers))], metadata)


def load_fitted(path: Path | str) -> Fitted:
    """The fitted model at `path`; anything else raises `coulda.storage.ArtifactError`."""
    artifact = read_artifact(Path(path), FITTED)
    found, data = artifact.metadata, artifact.read(_NUMBERS)
    if found.recipe not in _RECIPES:
        raise ArtifactError(f"{path}: expected a recipe of {sorted(_RECIPES)}, found '{found.recipe}'; fit it anew")
    recipe = msgspec.convert(found.settings, type=_RECIPES[found.recipe])
    verdict = tuple(
        Diagnostic(d["name"], float("nan") if d["value"] is None else d["value"], d["verdict"], d["sentence"])
        for d in found.verdict
    )
    make = {"tabular": _table, "neural": _vectors, "hidden": _hidden}[found.recipe]
    model, source, grounds = make(found, recipe, verdict, data)
    return Fitted(recipe, model, source, grounds, tuple(found.summary), found.log)


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
    columns, sizes = load_tree(data, empty), found.sizes
    twins, varies = bool(sizes["twins"]), bool(sizes["varies"])
    place, number, reward, initial, terminal = (columns[name] for name in empty)
    counts = Counts(
        place, number, reward, initial, sizes["actions"], states, sizes["seen"], twins, varies, terminal, found.horizon
    )
    model = counts.model(counts.number + recipe.prior, counts.initial, recipe.reparameterization)
    return model, Exact(model), TableGrounds(verdict, model, counts, recipe)


def _vectors(found: FittedMetadata, recipe: NeuralFit, verdict: tuple[Diagnostic, ...], data: bytes) -> tuple[Any, ...]:
    size, actions = found.sizes["size"], found.actions.space()
    controls = int(actions.n) if hasattr(actions, "n") else int(np.prod(actions.shape or ()))  # pyright: ignore
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
    numbers = load_tree(data, {"model": model, "folds": folds, "near": near, "on_log": 0.0})
    model = numbers["model"]
    assert isinstance(model, FittedVectors)
    grounds = VectorGrounds(verdict, model, numbers["on_log"], Nearness(**numbers["near"]))
    return model, CrossFitted(model, numbers["folds"]), grounds


def _hidden(found: FittedMetadata, recipe: HiddenFit, verdict: tuple[Diagnostic, ...], data: bytes) -> tuple[Any, ...]:
    empty = _hidden_template(found, recipe)
    numbers = load_tree(data, {"model": empty, "members": [empty] * found.sizes["members"]})
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

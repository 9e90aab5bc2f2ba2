"""`choose`: the source for a model, and why: the first that does not refuse, tried on a few episodes of its own."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jax import Array

from coulda.errors import CouldaError
from coulda.hindsight.amortized import Amortized
from coulda.hindsight.corrected import Corrected
from coulda.hindsight.exact import Exact
from coulda.hindsight.inverted import Inverted
from coulda.hindsight.nuts import Nuts
from coulda.hindsight.observed import ObservedStates
from coulda.hindsight.particles import Particles, Sampler
from coulda.hindsight.source import FINE, Choice, Inference, Prior, ScenarioSource, asked
from coulda.hindsight.tempered import Tempered
from coulda.naming import anywhere, named
from coulda.policies import AnyAction
from coulda.pomdp import POMDP, BlackBoxPOMDP, batched, rollout

SOURCES: dict[str, Callable[[Any], ScenarioSource]] = {
    "exact": Exact,
    "observed": ObservedStates,
    "particles": Particles,
    "tempered": Tempered,
}
"""In the order in which they are tried."""
ON_REQUEST: dict[str, Callable[[Any], ScenarioSource]] = {"inverted": Inverted, "nuts": Nuts, "prior": Prior}
"""Those that are not tried."""
PILOT = 8
"""Episodes on which a sampler is tried."""
FEW_EFFECTIVE = 30
"""Different first noises below which draws of an episode are too much alike: the mean of 30 is off by a fifth of a
posterior deviation."""
CORRECTED = "corrected:"
LARGE_GAP = 2.0
"""Nats between two halves' log evidence: weights of seven to one."""


def choose(model: POMDP) -> Choice:
    """The first source that can infer the scenarios of `model`: exact, from seen states, particles, tempered.

    Samplers are tried on a few episodes of the model's own, under any actions, which takes seconds. Nothing is trained,
    and no Markov chain is run.
    """
    if isinstance(model, BlackBoxPOMDP):
        return _of_black_box(model)
    refusals: list[str] = []
    for name, make in SOURCES.items():
        try:
            source = make(model)
        except CouldaError as error:
            if name in ("particles", "tempered"):
                raise CouldaError(_nothing(model, refusals, str(error))) from error
            refusals.append(f"{name}: {error}")
            continue
        reason = _tried(source) if isinstance(source, Sampler) else None
        if reason is None:
            return Choice(source, _why(name, refusals))
        refusals.append(f"{name}: {reason}")
    raise CouldaError(_nothing(model, refusals, ""))


def _of_black_box(model: BlackBoxPOMDP) -> Choice:
    """Inversion, or nothing: samplers run a program of a user's own some hundred thousand times per episode."""
    try:
        return Choice(Inverted(model), "inverted, since what the simulator draws can be gone through")
    except CouldaError as error:
        raise CouldaError(
            f"no source is quick for {type(model).__name__}. inverted: {str(error).rstrip('.')}. tempered, by whole "
            "rollouts, is slow and sure: ask for it by its name, or for Tempered(model, particles=…) with fewer. A "
            "network is trained once, by `coulda train-hindsight --model … --out DIR`, and then asked for as DIR"
        ) from error


def chosen(model: POMDP, scenarios: ScenarioSource | str) -> Choice:
    """The source that is named, or `choose`n where that is "auto"; one that is given is taken as it is.

    A name is one of the table's, or that of a function of the model, `package.module:name` or `file.py:name`; or the
    folder of an `Amortized` source, or `corrected:FOLDER`.
    """
    if isinstance(scenarios, ScenarioSource):
        return asked(scenarios)
    if scenarios == "auto":
        return choose(model)
    corrects, folder = scenarios.startswith(CORRECTED), Path(scenarios.removeprefix(CORRECTED))
    if corrects or folder.is_dir():
        source = Amortized.load(folder, model)
        return asked(Corrected(source, model) if corrects else source)
    if ":" in scenarios:
        found = named(scenarios)(model)
        if not isinstance(found, ScenarioSource):
            raise CouldaError(f"'{scenarios}' makes a {type(found).__name__}, not a ScenarioSource")
        return asked(found)
    known = SOURCES | ON_REQUEST
    if scenarios not in known:
        raise CouldaError(
            f"scenarios is {scenarios!r}; choose from {['auto', *known]}, or give a source, or the folder of one that "
            "was trained."
        )
    return Choice(known[scenarios](model), f"{scenarios}, as asked")


def found_anywhere(scenarios: str) -> str:
    """The same name of a source such that it is found from any folder."""
    prefix = CORRECTED if scenarios.startswith(CORRECTED) else ""
    folder = Path(scenarios.removeprefix(prefix))
    if prefix or folder.is_dir():
        return f"{prefix}{folder.resolve()}"
    return anywhere(scenarios) if ":" in scenarios else scenarios


def _why(name: str, refusals: list[str]) -> str:
    if not refusals:
        return f"{name}, since the posterior is known"
    return f"{name}, since {'; '.join(refusal.rstrip('.') for refusal in refusals)}"


def _nothing(model: POMDP, refusals: list[str], last: str) -> str:
    told = "; ".join(refusal.rstrip(".") for refusal in [*refusals, *([last] if last else [])])
    return (
        f"no source infers the scenarios of {type(model).__name__}: {told}. Or train one, which needs no density: "
        "`coulda train-hindsight --model … --out DIR`, then `--scenarios DIR`; in Python, Amortized.train(key, model)."
    )


def _tried(source: Sampler) -> str | None:
    """Why a sampler does not do on episodes of the model's own, or None where it does."""
    found = jax.tree.map(np.asarray, _pilot(source, jax.random.split(jax.random.key(0), PILOT)))
    if (found.reason != FINE).any():
        return f"{int((found.reason != FINE).sum())} of {PILOT} simulated episodes could not be explained"
    effective, gap = float(np.median(found.effective)), float(np.median(found.gap))
    if effective < FEW_EFFECTIVE:
        return f"{effective:.0f} of {source.particles:,} first noises survive"
    if gap > LARGE_GAP:
        return f"two halves of the particles differ by {gap:.1f} nats of log evidence"
    return None


@eqx.filter_jit
def _pilot(source: Sampler, keys: Array) -> Inference:
    model = source.model

    def one(key: Array) -> Inference:
        key_scenario, key_infer = jax.random.split(key)
        episode = rollout(model, AnyAction.of(model), model.scenario_prior.sample(key_scenario)).episode
        return source.infer_many(key_infer, episode, 1)[1]

    return batched(one, keys)

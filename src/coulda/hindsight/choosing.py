"""`choose`: the source for a model, and why: the first that does not refuse, tried on a few episodes of its own."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from coulda.errors import CouldaError
from coulda.hindsight.amortized import Amortized
from coulda.hindsight.calibration import calibrate
from coulda.hindsight.corrected import Corrected
from coulda.hindsight.exact import Exact
from coulda.hindsight.inverted import Inverted
from coulda.hindsight.nuts import Nuts
from coulda.hindsight.observed import ObservedStates
from coulda.hindsight.particles import Particles, Sampler
from coulda.hindsight.source import Choice, Prior, ScenarioSource, asked
from coulda.hindsight.tempered import Tempered
from coulda.naming import anywhere, named
from coulda.policies import AnyAction
from coulda.pomdp import POMDP, BlackBoxPOMDP
from coulda.progress import bar

SOURCES: dict[str, Callable[[Any], ScenarioSource]] = {
    "exact": Exact,
    "observed": ObservedStates,
    "particles": Particles,
    "tempered": Tempered,
}
"""In the order in which they are tried."""
ON_REQUEST: dict[str, Callable[[Any], ScenarioSource]] = {"inverted": Inverted, "nuts": Nuts, "prior": Prior}
"""Those that are not tried."""
PILOT, PILOT_DRAWS = 64, 15
"""Episodes on which a sampler is tried, and draws of each among which the truth is ranked: as many find draws that are
off by half a deviation."""
UNEVEN = 1e-3
"""Probability of ranks as uneven as those of the pilot, below which a sampler is not taken."""
MORE = 4
"""Times as many particles, where that leaves enough first noises: still far cheaper than tempering."""
FEW_EFFECTIVE = 30
"""Different first noises below which draws of an episode are too much alike: the mean of 30 is off by a fifth of a
posterior deviation."""
CORRECTED = "corrected:"
LARGE_GAP = 2.0
"""Nats between two halves' log evidence: weights of seven to one."""


def choose(model: POMDP) -> Choice:
    """The first source that can infer the scenarios of `model`: exact, from seen states, particles, tempered.

    Samplers are tried on a few episodes of the model's own, under any actions, which takes seconds: enough different
    first noises must be left, and the ranks of the true noise among the draws must not be uneven. Nothing is trained,
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
        if not isinstance(source, Sampler):
            return Choice(source, _why(name, refusals))
        trial = _tried(name, source)
        if larger := _larger(source, trial):
            refusals.append(f"{name}: {trial.reason}")
            source, trial = larger, _tried(name, larger)
        if trial.reason is None:
            return Choice(source, _why(f"{name} ({source.particles:,})", refusals))
        refusals.append(f"{name}: {trial.reason}")
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
        "`coulda train-hindsight --model … --out DIR`, then `--scenarios DIR`; in Python, Amortized.train(key, model)"
    )


class _Trial(NamedTuple):
    """What came of trying a sampler."""

    reason: str | None
    """Why it does not do; None where it does."""
    effective: float
    """Different first noises that are left, in the median episode."""


def _tried(name: str, source: Sampler) -> _Trial:
    """A sampler on episodes of the model's own, whose noise is known."""
    policies = {"any actions": AnyAction.of(source.model)}
    with bar(f"trying {name}, {source.particles:,} at once, on simulated episodes", PILOT) as advance:
        found = calibrate(
            jax.random.key(0), source, source.model, policies, episodes=PILOT, draws=PILOT_DRAWS, advance=advance
        )
    effective, gap = float(np.median(found.inference.effective)), float(np.median(found.inference.gap))
    worst = min(found.quantities, key=lambda quantity: quantity.adjusted)
    reason = None
    if found.failed:
        reason = f"{found.failed} of {PILOT} simulated episodes could not be explained"
    elif effective < FEW_EFFECTIVE:
        reason = f"{effective:.0f} of {source.particles:,} first noises survive"
    elif gap > LARGE_GAP:
        reason = f"two halves of the particles differ by {gap:.1f} nats of log evidence"
    elif worst.adjusted < UNEVEN:
        reason = f"in simulated episodes the ranks of {worst.label} are uneven"
    return _Trial(reason, effective)


def _larger(source: Sampler, trial: _Trial) -> Particles | None:
    """The filter with more particles, where first noises are all that it lacks and these will be enough."""
    if not isinstance(source, Particles) or not FEW_EFFECTIVE / MORE <= trial.effective < FEW_EFFECTIVE:
        return None
    try:
        return Particles(source.model, particles=MORE * source.particles)
    except CouldaError:  # more than the memory holds
        return None

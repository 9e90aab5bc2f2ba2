"""`calibrate`: whether a source's draws are draws of p(U | h_t), and whether they say more than the prior.

Draw a scenario u from the model's prior, and let somebody act on it: then u itself is one draw of p(U | h) for the
history h that was left. Among the draws of a right source no rank of it is likelier than another (simulation-based
calibration: Talts et al., 2018). That holds of every number that is a function of u and h: of coordinates of the noise,
of log p(h | u) (Modrák et al., 2023), of the distance to a random point (TARP: Lemos et al., 2023), and of what all
this is for, the counterfactual return G^π(u). The prior passes the tests of coordinates and returns, whatever was seen:
how much nearer to the truth the draws are than the prior's is told besides.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import equinox as eqx
import jax
import numpy as np
from jax import Array

from coulda.errors import CouldaError
from coulda.hindsight.asking import LIKELIHOOD, Asked, coordinates_of, evidence_of, inferred_fields, simulated
from coulda.hindsight.particles import check_size
from coulda.hindsight.ranks import holm, how_wrong, information, ranked, smooth_test
from coulda.hindsight.source import FINE, Inference, ScenarioSource
from coulda.noise import check_key
from coulda.policies import AnyAction
from coulda.policies.checks import check_policy_fits
from coulda.pomdp import POMDP, Actor, Planner, Policy
from coulda.pomdp.batching import raised_as_they_are
from coulda.pomdp.rollout import check_discount
from coulda.progress import Advance, followed
from coulda.scales import normal_above

CalibrationVerdict = Literal["calibrated", "not calibrated", "says nothing more than the prior"]
"""What is found of a source."""

ALPHA = 0.01
"""The probability with which a right source is found at fault, over all of its quantities together (Holm), and with
which draws of the prior are taken for more. Measured at the default sizes, with one quantity of twelve wrong: 1 % where
it is right; 24, 66, 92 and 99 % where it is shifted by 0.15, 0.2, 0.25 and 0.3 deviations; 26, 77 and 99.5 % where it
is 0.9, 0.85 and 0.8 times as wide as it should be (`results/evaluation/calibration.json`)."""
FEWEST_DRAWS = 10
"""With fewer a rank says little: nine draws and the truth have ten ranks."""
DISTANCE = "distance to a random point"
BLURRED = (
    "Noise and returns are ranked evenly; but draws explain the history less well than the truth does, which shows the "
    "least blur of an approximation. More simulations or particles help; `Corrected` weighs the draws of a network."
)
"""What to say where nothing but log p(h | u) is uneven."""


@dataclass(frozen=True, eq=False)
class Quantity:
    """One number that is a function of the scenario and the history, ranked among its draws in every episode."""

    name: str
    steps: int | None
    """T of h_t; None where the source was asked as it is."""
    ranks: np.ndarray
    """How many draws lie below the truth, `[n]`, ties broken at random; the fraction is random, for a smooth test."""
    p_value: float
    """Of ranks this uneven."""
    adjusted: float
    """The same over all quantities together (Holm)."""
    how: str
    """In what way the draws are wrong; empty where they were not found to be."""
    skill: float | None
    """The share of the prior's error that is gone: 1 is the truth itself, 0 the prior; None where it means nothing."""
    skill_error: float | None
    """Its standard error."""

    @property
    def label(self) -> str:
        """Its name, and t where it was given."""
        return self.name if self.steps is None else f"{self.name}, t = {self.steps}"


@dataclass(frozen=True, eq=False)
class Calibration:
    """What `calibrate` found."""

    source: str
    episodes: int
    draws: int
    quantities: tuple[Quantity, ...]
    inference: Inference
    """What the source says of itself in each episode, `[n]`."""
    skipped: tuple[str, ...]
    """What could not be asked, and why."""
    informed: bool
    """Whether any quantity is nearer to the truth than the prior's draws are."""

    @property
    def failed(self) -> int:
        """Episodes whose inference failed by what the source itself says."""
        return int((np.asarray(self.inference.reason) != FINE).sum())

    @property
    def wrong(self) -> tuple[Quantity, ...]:
        """Quantities whose ranks are uneven."""
        return tuple(quantity for quantity in self.quantities if quantity.how)

    @property
    def verdict(self) -> CalibrationVerdict:
        """In three words or so."""
        if any(quantity.name != LIKELIHOOD for quantity in self.wrong) or (self.informed and self.wrong):
            return "not calibrated"
        return "calibrated" if self.informed else "says nothing more than the prior"

    @property
    def sentences(self) -> tuple[str, ...]:
        """The verdict with its reasons, the first being the headline."""
        asked = f"{self.episodes:,} simulated episodes, {self.draws} draws each, {len(self.quantities)} quantities"
        least = min(quantity.adjusted for quantity in self.quantities)
        found = [f"{self.source}: {self.verdict} ({asked}; least adjusted p = {least:.2g})."]
        found += [f"{one.label}: {one.how} (adjusted p = {one.adjusted:.2g})." for one in self.wrong]
        if self.informed and self.wrong and all(one.name == LIKELIHOOD for one in self.wrong):
            found.append(BLURRED)
        known = [one for one in self.quantities if one.skill is not None]
        if joint := [one for one in known if one.name == DISTANCE]:
            share = "; ".join(f"{_percent(one)}{_at(one)}" for one in joint)
            found.append(f"Of the prior's error hindsight removes {share}, over all quantities together.")
        if alone := sorted((one for one in known if one.name != DISTANCE), key=lambda one: -(one.skill or 0.0)):
            most, least_known = alone[0], alone[-1]
            found.append(f"Most of {_skill(most)}; least of {_skill(least_known)}.")
        if self.failed:
            found.append(f"In {self.failed} of the episodes inference failed, as the source itself says.")
        return (*found, *self.skipped)

    def coverage(self, steps: int | None = None) -> tuple[np.ndarray, np.ndarray]:
        """TARP's curve: levels, and the share of episodes whose truth lies in the draws' region of that level.

        The region of level α is the ball around a random point that holds α of the draws.
        """
        (found,) = [one for one in self.quantities if one.name == DISTANCE and one.steps == steps]
        levels = np.linspace(0, 1, 41)
        return levels, (found.ranks / (self.draws + 1) <= levels[:, None]).mean(1)

    def histogram(self, quantity: Quantity, bins: int = 16) -> np.ndarray:
        """In how many episodes the truth's rank lies in each of so many equal parts of all ranks."""
        return np.histogram(quantity.ranks / (self.draws + 1), bins, (0, 1))[0]

    def plain(self) -> dict[str, Any]:
        """As JSON has it: numbers, strings, lists and None."""
        curves = {one.label: [x.tolist() for x in self.coverage(one.steps)] for one in self._distances}
        return {
            "source": self.source,
            "verdict": self.verdict,
            "sentences": list(self.sentences),
            "episodes": self.episodes,
            "draws": self.draws,
            "failed": self.failed,
            "alpha": ALPHA,
            "quantities": [self._plain(one) for one in self.quantities],
            "coverage": {name: {"levels": x, "shares": y} for name, (x, y) in curves.items()},
        }

    @property
    def _distances(self) -> list[Quantity]:
        return [one for one in self.quantities if one.name == DISTANCE]

    def _plain(self, one: Quantity) -> dict[str, Any]:
        return {
            "name": one.name,
            "steps": one.steps,
            "p": one.p_value,
            "adjusted p": one.adjusted,
            "how": one.how,
            "skill": one.skill,
            "standard error of the skill": one.skill_error,
            "rank histogram": self.histogram(one).tolist(),
        }


@raised_as_they_are()
def calibrate(
    key: Array,
    source: ScenarioSource,
    model: POMDP,
    policies: Mapping[str, Policy],
    *,
    episodes: int = 500,
    draws: int = 63,
    steps: Sequence[int] = (),
    discount: float = 1.0,
    advance: Advance | None = None,
) -> Calibration:
    """Simulate episodes whose noise is known, infer it by `source`, and rank the truth among the draws. Consumes `key`.

    In the episodes the source's own `behavior` acts, where it has one, since its draws depend on it; else any action is
    taken: p(U | h) does not depend on who acted. Noise that the source does not claim to infer (of actions where it
    does not know who acted, of observations where it says so) is fresh in the truth too, as in CF-PE (Corollary 2).

    Args:
        key: of everything that is drawn.
        source: over `model`.
        model: the world that is simulated; that it is the right one is not asked here.
        policies: by name, those whose counterfactual returns are ranked.
        episodes: how many. Four times as many find what is half as large.
        draws: of each episode's scenario. More make little difference.
        steps: values of t, each asked for h_t by itself; the source as it is by default.
        discount: γ of the returns.
        advance: told of episodes as they are done, `episodes` for each of the steps.
    """
    check_key(key)
    check_discount(discount)
    behavior = _check(source, model, policies, episodes, draws)
    key_coordinates, key_episodes, key_ties = jax.random.split(key, 3)
    evidence, skipped = evidence_of(source, model)
    fields = inferred_fields(source)
    asked = Asked(
        model, dict(policies), behavior, evidence, fields, coordinates_of(key_coordinates, model, fields), discount
    )
    dice = np.random.default_rng(np.asarray(jax.random.key_data(key_ties)).ravel().tolist())
    found: list[_Ranked] = []
    inferences: list[Inference] = []
    every = tuple(steps) or (None,)
    with followed(advance, "calibrating", episodes * len(every)) as tell:
        for t in every:
            given = source if t is None else source.given(t)
            truth, drawn, inference = simulated(key_episodes, asked, given, episodes, draws, tell)
            inferences.append(inference)
            found += _all_ranked(asked.names, t, truth, drawn, dice)
    if not found:
        raise CouldaError(f"{type(model).__name__} has no noise that varies, so that there is nothing to infer.")
    inference = jax.tree.map(lambda *parts: np.concatenate(parts), *inferences)
    return _judged(type(source).__name__, episodes, draws, found, inference, skipped)


@dataclass(frozen=True, eq=False)
class _Ranked:
    """A quantity before all of them are judged together."""

    name: str
    steps: int | None
    ranks: np.ndarray
    p_value: float
    not_finite: int
    """Draws that are no numbers."""
    gain: np.ndarray | None
    """By how much less than the prior the draws miss the truth, `[n]`."""
    scale: float
    """How much the prior misses it."""


def _all_ranked(
    names: list[str], steps: int | None, truth: np.ndarray, drawn: np.ndarray, dice: np.random.Generator
) -> list[_Ranked]:
    """Every quantity, and TARP's distance over those that are no density."""
    found = []
    for q, name in enumerate(names):
        mine, theirs = truth[:, q], drawn[:, :, q]
        bad = ~np.isfinite(mine)
        if bad.any():
            raise CouldaError(
                f"{name} is {mine[bad][0]} in {bad.sum()} of {len(mine)} episodes that the model itself made; "
                "coulda.testing.check_pomdp says what is wrong with it."
            )
        if (mine == mine[0]).all() and (theirs == mine[0]).all():
            continue  # the same in every scenario: nothing to rank
        found.append(_ranked_one(name, steps, mine[:, None], theirs[:, :, None], dice))
    kept = [q for q, name in enumerate(names) if name != LIKELIHOOD and truth[:, q].std() > 0]
    if kept:
        scale = truth[:, kept].std(0)
        found.append(_ranked_one(DISTANCE, steps, truth[:, kept] / scale, drawn[:, :, kept] / scale, dice))
    return found


def _ranked_one(
    name: str, steps: int | None, truth: np.ndarray, drawn: np.ndarray, dice: np.random.Generator
) -> _Ranked:
    """Of truth `[n, d]` and draws `[n, L, d]`: its one number, or its distance to another episode's truth."""
    bad = ~np.isfinite(drawn) if name != LIKELIHOOD else np.isnan(drawn) | (drawn == np.inf)
    mine, theirs = truth[:, 0], drawn[:, :, 0]
    if name == DISTANCE:
        points = np.roll(truth, -1, axis=0)  # another's truth is a draw of the prior, which knows nothing of this one
        mine, theirs = (np.linalg.norm(x - p, axis=-1) for x, p in ((truth, points), (drawn, points[:, None])))
    ranks = ranked(mine, theirs, dice.uniform(size=len(mine)))
    gain, scale = None, 0.0
    if name != LIKELIHOOD and not bad.any() and truth.std() > 0:
        gain, scale = information(truth, drawn)
    return _Ranked(name, steps, ranks, smooth_test(ranks / (drawn.shape[1] + 1)), int(bad.any(-1).sum()), gain, scale)


def _judged(
    source: str, episodes: int, draws: int, found: list[_Ranked], inference: Inference, skipped: tuple[str, ...]
) -> Calibration:
    adjusted = holm([0.0 if one.not_finite else one.p_value for one in found])
    gains = [one.gain for one in found if one.gain is not None]
    # One-sided: a source may also be worse than the prior, which its ranks tell.
    more = holm([float(normal_above(_studentized(gain))) for gain in gains]) if gains else np.ones(1)
    quantities = tuple(_quantity(one, p, draws) for one, p in zip(found, adjusted.tolist(), strict=True))
    return Calibration(source, episodes, draws, quantities, inference, skipped, bool(more.min() < ALPHA))


def _quantity(one: _Ranked, adjusted: float, draws: int) -> Quantity:
    how = ""
    if one.not_finite:
        how = f"{one.not_finite:,} of the draws are not finite"
    elif adjusted < ALPHA:
        how = how_wrong(one.ranks / (draws + 1))
    skill = error = None
    if one.gain is not None:
        skill = float(one.gain.mean()) / one.scale
        error = float(one.gain.std(ddof=1)) / np.sqrt(len(one.gain)) / one.scale
    return Quantity(one.name, one.steps, one.ranks, one.p_value, adjusted, how, skill, error)


def _studentized(gain: np.ndarray) -> float:
    error = gain.std(ddof=1) / np.sqrt(len(gain))
    return float(gain.mean() / error) if error > 0 else 0.0


def _percent(quantity: Quantity) -> str:
    assert quantity.skill is not None
    return f"{100 * quantity.skill:.0f} ± {100 * (quantity.skill_error or 0.0):.1f} %"


def _skill(quantity: Quantity) -> str:
    return f"{quantity.label}: {_percent(quantity)}"


def _at(quantity: Quantity) -> str:
    return "" if quantity.steps is None else f" at t = {quantity.steps}"


def _check(source: ScenarioSource, model: POMDP, policies: Mapping[str, Policy], episodes: int, draws: int) -> Actor:
    """Refuse what cannot be calibrated; who acts in the simulated episodes."""
    check_size("draws", draws, FEWEST_DRAWS)
    check_size("episodes", episodes, 2 * FEWEST_DRAWS)
    if not policies:
        raise CouldaError("there are no policies, and their counterfactual returns are what is calibrated; name one.")
    for name, policy in policies.items():
        if isinstance(policy, Planner):
            raise CouldaError(f"policy '{name}' is a planner, which sees the state; only policies can be evaluated.")
        check_policy_fits(policy, model)
    other = getattr(source, "model", None) or model
    if type(other) is not type(model) or not bool(eqx.tree_equal(other, model)):
        names = type(source).__name__, type(other).__name__, type(model).__name__
        same = " with other numbers in it" if names[1] == names[2] else ""
        raise CouldaError(
            f"{names[0]} infers the noise of a {names[1]}{same}, and the model to simulate is a {names[2]}; build the "
            "source over that model, since only its own noise can be ranked."
        )
    behavior = getattr(source, "behavior", None)
    return AnyAction.of(model) if behavior is None else behavior

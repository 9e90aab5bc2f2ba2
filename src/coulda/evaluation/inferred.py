"""How well the scenarios of a log could be inferred: what a source says of its own answers, episode by episode."""

import numpy as np

from coulda.evaluation.diagnostics import graded
from coulda.evaluation.estimate import Diagnostic
from coulda.hindsight import Inference
from coulda.hindsight.source import FAR, FINE, NOT_A_NUMBER

FEW_EFFECTIVE = 10
"""Different scenarios below which the draws of an episode say little of its posterior."""
LARGE_GAP = 3.0
"""Nats between two halves' log evidence: weights of twenty to one, so that one half is as good as unused."""
LARGE_R_HAT = 1.1
"""Gelman et al. (2013): chains that are a tenth wider together than each have not met."""

MANY_FAILED = 0.02
"""The share of episodes without an explanation from which on the value is not to be trusted: their scenarios mean
nothing, and they are those in which something unusual happened."""

LITTLE_KNOWN = 0.02
"""Of the variance of the return: then a counterfactual answer is as good as a simulated one."""


def inference_diagnostics(found: Inference) -> tuple[Diagnostic, ...]:
    """Of all episodes of a log, `[N]` each; nothing of a source that makes no error, or knows nothing of them."""
    if np.isfinite(found.effective).any():
        return _explained(found), _precise(found)
    return (_explained(found),) if (found.reason != FINE).any() else ()


def _explained(found: Inference) -> Diagnostic:
    """Episodes that no scenario explains: either the model cannot have made them, or a density is wrong."""
    failed = np.flatnonzero(found.reason != FINE)
    share = len(failed) / len(found.reason)
    if not len(failed):
        return Diagnostic("explained", 1.0, "trust", "The model can explain every logged episode.")
    first = failed[0]
    what = "no scenario that was tried can have made what was seen"
    if (found.reason == NOT_A_NUMBER).any():
        what = "the density of what was seen is NaN or +inf"
    elif (found.reason == FAR).any():
        what = "it is unlike all that the network learned from, or something is missing in it"
    sentence = (
        f"{len(failed)} of {len(found.reason)} episodes are not explained by the model; the first is episode {first}, "
        f"at step {int(found.step[first])}: {what}."
    )
    broken = bool((found.reason == NOT_A_NUMBER).any()) or share > MANY_FAILED
    return Diagnostic("explained", 1 - share, "do not trust" if broken else "caution", sentence)


def _precise(found: Inference) -> Diagnostic:
    """Episodes of which too few different scenarios were found, or whose halves disagree."""
    poor = (found.effective < FEW_EFFECTIVE) | (found.gap > LARGE_GAP) | (found.r_hat > LARGE_R_HAT)
    share, typical = float(poor.mean()), float(np.median(found.effective))
    if share == 0:
        sentence = f"Scenarios of every episode could be inferred, from {typical:.0f} different ones in the median."
    else:
        sentence = (
            f"The scenarios of {share:.0%} of the episodes are poorly inferred ({typical:.0f} different ones in the "
            f"median, halves of the work {float(np.median(found.gap)):.1f} nats apart): more particles are needed, "
            "or take Tempered."
        )
    return Diagnostic("inference", 1 - share, graded(share, 0.05, 0.25), sentence)


def information_diagnostic(share: float) -> Diagnostic:
    """How much of the variance of the return an episode's history tells; it is no reason to doubt the value."""
    sentence = f"What was logged of an episode tells {share:.0%} of the variance of its return."
    if share < LITTLE_KNOWN:
        sentence = f"{sentence} Hindsight adds next to nothing to the model's prior here."
    return Diagnostic("information", share, "trust", sentence)

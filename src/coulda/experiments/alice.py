"""Alice's two job offers (paper, section 1): the smallest story in which hindsight beats a good prior.

A month ago Alice had two offers. During the interview at the first company she had an awkward feeling, but it
paid more, and she joined it. Since then she has seen what work there is like, and a friend has told her about
the second company. Had she joined the second one, how would she have fared?
"""

from dataclasses import dataclass
from pathlib import Path

import jax
import jax.numpy as jnp

from coulda.counterfactuals import Counterfactual, counterfactual
from coulda.mechanisms import additive, exogenous, gumbel_max
from coulda.noise import Gumbel, Normal
from coulda.scm import SCM, do

SALARY = (1.0, 0.0)
"""What the two companies pay, in units of satisfaction."""

EVIDENCE = {"feeling": -1.0, "choice": 0, "outcome": -0.3, "friend": 0.8}
"""An awkward interview; she joined the first company; it was no joy; a friend speaks well of the second."""


def alice() -> SCM:
    """Alice's choice as a structural causal model (Figure 1, left, with what she learns later).

    `companies` [2] are the hidden qualities of the two companies, U_o in the paper; `feeling` is the cue
    during the interview at the first; `choice` is 0 or 1; `friend` is a report about the second.
    """
    salary = jnp.asarray(SALARY)
    return SCM(
        noise={
            "companies": Normal(shape=(2,)),
            "feeling": Normal(0.0, 0.5),
            "choice": Gumbel((2,)),
            "outcome": Normal(0.0, 0.3),
            "friend": Normal(0.0, 0.6),
        },
        mechanisms={
            "companies": exogenous(),
            "feeling": additive(("companies",), lambda quality: quality[0]),
            # She weighs the salary twice as much as the cue: this is the policy that she will regret.
            "choice": gumbel_max(("feeling",), lambda feeling: jnp.stack([2 * salary[0] + feeling, 2 * salary[1]])),
            "outcome": additive(("companies", "choice"), lambda quality, choice: salary[choice] + quality[choice]),
            "friend": additive(("companies",), lambda quality: quality[1]),
        },
    )


@dataclass(frozen=True)
class Story:
    """What the model says of the road not taken."""

    factual: float
    """How it went."""
    before: float
    """What the model would have predicted for the second company before anything was known."""
    counterfactual: float
    """How it would have gone."""
    standard_error: float
    probability_better: float
    """That the second company would have been the better choice, in this very scenario."""
    effective_sample_size: float
    method: str


def ask(key: jax.Array, num_samples: int = 20_000) -> tuple[Story, Counterfactual]:
    """Had Alice joined the second company?"""
    scm = alice()
    answer = counterfactual(key, scm, EVIDENCE, do(choice=1), ["outcome", "companies"], num_samples=num_samples)
    prior = do(choice=1)(scm).sample(key, num_samples)["outcome"]
    better = answer.samples["outcome"] > answer.factual["outcome"]
    story = Story(
        factual=float(EVIDENCE["outcome"]),
        before=float(prior.mean()),
        counterfactual=float(answer.mean("outcome")),
        standard_error=float(answer.standard_error("outcome")),
        probability_better=float(jnp.sum(jnp.exp(answer.log_weights) * better.astype(float))),
        effective_sample_size=float(answer.effective_sample_size),
        method=answer.method,
    )
    return story, answer


def draw(folder: Path) -> list[Path]:
    """Alice's SCM as it was, and under do(choice = 1), as SVG files in `folder`."""
    scm = alice()
    places = {"companies": (1.2, 0.0), "feeling": (-0.6, -1.2), "choice": (-0.6, -2.4)}
    places |= {"outcome": (1.2, -2.4), "friend": (3.0, -1.2)}
    factual = scm.draw(observed=EVIDENCE, positions=places).save(folder / "alice.svg")
    imagined = do(choice=1)(scm).draw(observed=EVIDENCE, positions=places).save(folder / "alice_do.svg")
    return [factual, imagined]

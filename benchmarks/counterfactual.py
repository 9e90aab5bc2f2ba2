"""The counterfactual core against DoWhy (linear and nonlinear additive SCMs) and ChiRho (a discrete query).

The same models, the same evidence, the same answers; one process each, warm. Compilation is stated apart.
"""

import tempfile
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.harness import run_peer, seconds, sized
from coulda import SCM, Bernoulli, Independent, Mechanism, Normal, counterfactual, do
from coulda.mechanisms import additive, exogenous

ROWS = sized(100_000, 1_000)
KEY = jax.random.key(0)


def linear(coefficients: dict[str, list[float]]) -> SCM:
    """X → H → Y, X → Y."""
    (h0, hx), (y0, yh, yx) = coefficients["H"], coefficients["Y"]
    return SCM(
        {name: Normal() for name in "XHY"},
        {
            "X": exogenous(),
            "H": additive(("X",), lambda x: h0 + hx * x),
            "Y": additive(("X", "H"), lambda x, h: y0 + yx * x + yh * h),
        },
    )


def nonlinear() -> SCM:
    """The same graph with curved mechanisms."""
    return SCM(
        {name: Normal() for name in "XHY"},
        {
            "X": exogenous(),
            "H": additive(("X",), lambda x: jnp.sin(2 * x) + 0.5 * x),
            "Y": additive(("X", "H"), lambda x, h: jnp.tanh(x * h) + 0.3 * h**2),
        },
    )


def evidence() -> dict[str, np.ndarray]:
    """`ROWS` rows from the nonlinear model."""
    return {name: np.asarray(value) for name, value in nonlinear().sample(KEY, ROWS).items()}


def clinic() -> SCM:
    """Hidden disease D, test T, treatment A, outcome Y, as responses to their causes; T is seen, A would be given."""
    return SCM(
        {
            "D": Bernoulli(0.2),
            "T": Independent({"sick": Bernoulli(0.9), "well": Bernoulli(0.2)}),
            "A": Bernoulli(0.3),
            "Y": Independent({"treated": Bernoulli(0.7), "untreated": Bernoulli(0.3), "well": Bernoulli(0.9)}),
        },
        {
            "D": Mechanism((), lambda u: u),
            "T": Mechanism(("D",), lambda d, u: jnp.where(d, u["sick"], u["well"])),
            "A": Mechanism((), lambda u: u),
            "Y": Mechanism(
                ("D", "A"), lambda d, a, u: jnp.where(d, jnp.where(a, u["treated"], u["untreated"]), u["well"])
            ),
        },
    )


def against_dowhy(rows: dict[str, np.ndarray]) -> dict[str, Any]:
    """Both additive models, had H been 2, for every row."""
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "rows.npz"
        np.savez(data, allow_pickle=False, **rows)
        report = run_peer("dowhy", "dowhy_counterfactual.py", str(data), folder)
        theirs = np.load(Path(folder) / "answers.npz", allow_pickle=False)
        answers = {name: theirs[name] for name in ("linear", "nonlinear")}
    out = {}
    for name, scm in (("linear", linear(report["coefficients"])), ("nonlinear", nonlinear())):
        ask = lambda scm=scm: jax.block_until_ready(counterfactual(KEY, scm, rows, do(H=2.0), ["Y"]).samples["Y"])
        ours = seconds(ask)
        error = np.abs(np.asarray(ask())[:, 0] - answers[name]).max()
        out[name] = {
            "rows": ROWS,
            "coulda_seconds": ours["warm"],
            "dowhy_seconds": report[name],
            "ratio": report[name] / ours["warm"],
            "coulda_first_call_seconds": ours["first_call"],
            "largest_difference": float(error),
        }
    return out


def against_chirho() -> dict[str, Any]:
    """P(Y = 1, had A been given | T = 1): ours exactly by enumeration, theirs by `ROWS` weighted draws.

    Also draw for draw, by importance sampling, in seconds of the processor, one thread each, before and after the peer.
    """
    scm = clinic()

    def ask(abduction: str) -> float:
        answer = counterfactual(KEY, scm, {"T": True}, do(A=True), ["Y"], abduction=abduction, num_samples=ROWS)
        return float(answer.mean("Y"))

    before = seconds(lambda: ask("importance"), repeats=15)["processor"]
    report = run_peer("chirho", "chirho_counterfactual.py", str(ROWS))
    drawn = min(before, seconds(lambda: ask("importance"), repeats=15)["processor"])
    ours = seconds(lambda: ask("auto"), repeats=50)
    disease = 0.2 * 0.9 / (0.2 * 0.9 + 0.8 * 0.2)
    return {
        "coulda_seconds": ours["warm"],
        "chirho_seconds": report["seconds"],
        "ratio": report["seconds"] / ours["warm"],
        "coulda_first_call_seconds": ours["first_call"],
        "draw_for_draw": {
            "draws": ROWS,
            "coulda_processor_seconds": drawn,
            "chirho_processor_seconds": report["processor"],
            "ratio": report["processor"] / drawn,
        },
        "answers": {
            "coulda": ask("auto"),
            "chirho": report["answer"],
            "closed_form": 0.7 * disease + 0.9 * (1 - disease),
        },
    }


def main() -> dict[str, Any]:
    """All of it."""
    return {"dowhy": against_dowhy(evidence()), "chirho": against_chirho()}

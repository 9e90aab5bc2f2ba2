"""How well the exact sepsis probabilities agree with the published draws, written to results/sepsis.

python -m benchmarks.sepsis_agreement tests/fixtures/sepsis_transitions.npz
"""

import json
import sys
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from scipy.stats import chi2

from coulda.environments.sepsis import kernel

DRAWS = 10_000
"""For each (component, action, state) and for each component's first states."""


def agreement(published: dict[str, np.ndarray], probabilities: np.ndarray | None = None) -> dict[str, Any]:
    """Pearson's chi-square of the published frequencies under the exact probabilities, row by row.

    A row is a (component, action, state). Cells with an expected count below five are pooled within their row, as
    the chi-square distribution asks.
    """
    exact = np.asarray(kernel.transition_probabilities() if probabilities is None else probabilities, float)
    sampled, impossible = _by_vitals(published, exact)
    expected = DRAWS * exact
    small = expected < 5
    pooled_expected = np.where(small, expected, 0).sum(-1)
    pooled_sampled = DRAWS * np.where(small, sampled, 0).sum(-1)
    with np.errstate(divide="ignore", invalid="ignore"):
        cells = np.where(small, 0, (DRAWS * sampled - expected) ** 2 / expected).sum(-1)
        pool = np.where(pooled_expected > 0, (pooled_sampled - pooled_expected) ** 2 / pooled_expected, 0)
    degrees = (~small).sum(-1) + (pooled_expected > 0) - 1
    statistic = np.where(degrees > 0, cells + pool, 0)
    p_values = chi2.sf(statistic[degrees > 0], degrees[degrees > 0])
    first = kernel.initial_probabilities(0.2)
    first = first / first.sum(1, keepdims=True)
    gap = np.where(first > 0, (published["p_initial_state"] - first) ** 2 / np.where(first > 0, first, 1), 0)
    return {
        "draws_per_row": DRAWS,
        "rows": int(statistic.size),
        "degrees_of_freedom": int(degrees.sum()),
        "chi_square": float(statistic.sum()),
        "chi_square_per_degree": float(statistic.sum() / degrees.sum()),
        "smallest_p_value": float(p_values.min()),
        "p_value_deciles": [float(share) for share in np.histogram(p_values, 10, (0, 1))[0] / p_values.size],
        "largest_difference": float(np.abs(sampled - exact).max()),
        "impossible_transitions_that_were_sampled": impossible,
        "rewards_equal": bool(np.array_equal(kernel.rewards(), published["reward"])),
        "initial_state_chi_square": [float(x) for x in DRAWS * gap.sum(1)],
        "initial_state_degrees_of_freedom": [int(x) for x in (first > 0).sum(1) - 1],
        "diabetes_at_the_start": float(kernel.initial_probabilities(0.2)[1].sum()),
    }


def _by_vitals(published: dict[str, np.ndarray], exact: np.ndarray) -> tuple[np.ndarray, int]:
    """The sampled frequencies `[2, 8, 720, 90]`, and how many went where the exact ones say nobody goes."""
    component, action, state, following = (
        published[name].astype(int) for name in ("component", "action", "state", "next_state")
    )
    vitals, treatments = np.divmod(following, kernel.NUM_TREATMENTS)
    sampled = np.zeros_like(exact)
    np.add.at(sampled, (component, action, state, vitals), published["probability"])
    given = np.array([int(kernel.treatment_bits(jnp.int32(a))) for a in range(kernel.NUM_ACTIONS)])
    wrong_treatments = (treatments != given[action]).sum()
    return sampled, int(wrong_treatments + ((sampled > 0) & (exact == 0)).sum())


def main() -> None:
    """Write results/sepsis/agreement.json."""
    published = dict(np.load(sys.argv[1], allow_pickle=False))
    out = Path(__file__).parents[1] / "results" / "sepsis" / "agreement.json"
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(agreement(published), indent=2) + "\n")
    print(out.read_text())


if __name__ == "__main__":
    main()

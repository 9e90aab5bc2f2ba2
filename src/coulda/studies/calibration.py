"""How wrong must draws be for `calibrate` to find it, and how often does it find fault with right ones?

`python -m coulda.studies.calibration` writes `results/evaluation/calibration.json`. Sizes are those of `calibrate`'s
defaults. Power is counted on Gaussian posteriors, of which one quantity of twelve is wrong; false alarms also on exact
posteriors of two models, and of draws of the prior it is counted how often they are taken for more.
"""

import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
import tyro

from coulda.environments import LinearQuadratic, tiger
from coulda.hindsight import Exact, Prior, calibrate
from coulda.hindsight.calibration import ALPHA
from coulda.hindsight.ranks import holm, ranked, smooth_test
from coulda.policies import AnyAction, TabularPolicy
from coulda.pomdp import FinitePOMDP, LinearGaussianPOMDP, Policy
from coulda.storage import replace_json

SHIFTS = (0.1, 0.15, 0.2, 0.25, 0.3)
"""In posterior deviations."""
WIDTHS = (0.7, 0.8, 0.85, 0.9, 1.1, 1.25)
"""In those that would be right."""
BOLD = TabularPolicy([[0.1, 0.0, 0.9], [0.1, 0.9, 0.0], [1.0, 0.0, 0.0]])


@dataclass(frozen=True)
class Calibrating:
    """What `calibrate` finds, and what it wrongly finds."""

    repeats: int = 1000
    """Of each size of error."""
    models: int = 100
    """Calibrations of each model."""
    episodes: int = 500
    """In each."""
    draws: int = 63
    """Of each episode."""
    quantities: int = 12
    """Of which one is wrong."""
    seed: int = 0
    """Of everything."""
    out: Path = Path("results/evaluation/calibration.json")
    """Where the numbers go."""

    def run(self) -> None:
        """Count, print and write."""
        start = time.time()
        found: dict[str, Any] = {key: value for key, value in asdict(self).items() if key != "out"}
        found["alpha"] = ALPHA
        found["right"] = self._found(0.0, 1.0)
        found["shifted"] = {str(shift): self._found(shift, 1.0) for shift in SHIFTS}
        found["as wide"] = {str(width): self._found(0.0, width) for width in WIDTHS}
        for name, (model, policy) in worlds().items():
            found[name] = self._on_model(model, policy)
        found["seconds"] = round(time.time() - start)
        self.out.parent.mkdir(parents=True, exist_ok=True)
        replace_json(self.out, found)

    def _found(self, shift: float, width: float) -> float:
        """In what share of the calibrations any quantity is flagged."""
        rng = np.random.default_rng([self.seed, round(1000 * shift), round(1000 * width)])
        return float(np.mean([self._once(rng, shift, width) for _ in range(self.repeats)]))

    def _once(self, rng: np.random.Generator, shift: float, width: float) -> bool:
        truth, draws = rng.normal(size=self.episodes), rng.normal(size=(self.episodes, self.draws))
        ranks = ranked(truth, shift + width * draws, rng.uniform(size=self.episodes))
        others = [smooth_test(rng.uniform(size=self.episodes)) for _ in range(self.quantities - 1)]
        return bool(holm([smooth_test(ranks / (self.draws + 1)), *others]).min() < ALPHA)

    def _on_model(self, model: FinitePOMDP | LinearGaussianPOMDP, policy: Policy) -> dict[str, float]:
        """Of exact posteriors and of the prior, each share of the verdicts."""
        shares: dict[str, float] = {}
        policies = {"it": policy}
        for source in (Exact(model), Prior(model)):
            for i in range(self.models):
                key = jax.random.fold_in(jax.random.key(self.seed), i)
                found = calibrate(key, source, model, policies, episodes=self.episodes, draws=self.draws)
                name = f"{found.source}: {found.verdict}"
                shares[name] = shares.get(name, 0.0) + 1 / self.models
        return {name: round(share, 4) for name, share in sorted(shares.items())}


def worlds() -> dict[str, tuple[FinitePOMDP | LinearGaussianPOMDP, Policy]]:
    """Two small models with exact posteriors, discrete and continuous."""
    hidden = LinearQuadratic(
        A=[[0.9, 0.2], [-0.1, 0.8]],
        B=[[0.0], [1.0]],
        Q=np.eye(2),
        R=[[0.5]],
        horizon=3,
        initial_mean=[1.0, -1.0],
        initial_scale=[[0.5, 0.0], [0.2, 0.4]],
        transition_scale=[[0.3, 0.0], [0.1, 0.2]],
        C=[[1.0, 0.5]],
        observation_scale=[[0.3]],
    )
    return {
        "tiger": (tiger(horizon=3, reparameterization="gumbel_max"), BOLD),
        "linear-Gaussian": (hidden, AnyAction.of(hidden)),
    }


if __name__ == "__main__":
    tyro.cli(Calibrating).run()

"""`coulda train-hindsight --model … --out DIR`: a network that infers the scenarios of any simulator."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console

from coulda.recipes.hindsight import HindsightRecipe


@dataclass(frozen=True)
class TrainHindsight:
    """Train a network to say which scenario was behind a history: p(U | h), for a simulator without any density.

    Episodes are simulated, whose noise is known, and the network learns to tell it from what they show. It is written
    to OUT/source, which `--scenarios OUT` of evaluate, calibrate and search takes, and `Amortized.load(OUT, model)` in
    Python; the pairs are kept in OUT/pairs. Training stops where pairs that were held out say so. Ctrl-C saves, and the
    same command goes on.

    Models and policies are named `module:name` or `file.py:name`: an object, or a function that makes it.
    """

    model: str
    """The simulator whose noise is to be inferred: a POMDP, or a Gymnasium environment."""
    out: Path
    """The folder for pairs, checkpoints and the source."""
    policy: Annotated[tuple[str, ...], tyro.conf.UseAppendAction] = ()
    """Who acts in the simulated episodes beside any action, in equal shares; may be given several times. Best those who
    logged."""
    simulations: int = 10_000
    """The number of simulated episodes."""
    steps: int | None = None
    """The t of h_t, if one is enough; by default one network serves every t."""
    width: int = 64
    """The width of the networks."""
    components: int = 8
    """The components of each mixture of Gaussians."""
    passes: int | None = None
    """The most passes over the pairs; by default some 9,000 updates."""
    rewards: bool | None = None
    """Whether rewards are evidence; by default where they take separate values, as everywhere."""
    seed: int = 0
    """The seed of everything that is drawn."""

    def run(self) -> None:
        """Train, and say what was reached."""
        asked = {name: value for name, value in vars(self).items() if name not in ("policy", "out")}
        recipe = HindsightRecipe(policies=self.policy, **asked)
        found, console = recipe.train(self.out), Console(highlight=False, soft_wrap=True)
        told = found.metadata
        console.print(
            f"{told.simulations:,} simulations under {', '.join(told.policies)}; best after {told.passes} passes: "
            f"{-told.held_out:.3f} nats of log q on held-out pairs."
        )
        console.print(
            f"written: {self.out / 'source'}. Ask whether to believe it: coulda calibrate --model {self.model} "
            f"--scenarios {self.out}"
        )


COMMANDS = TrainHindsight

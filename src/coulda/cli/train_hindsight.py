"""`coulda train-hindsight --model … --out DIR`: a network that infers the scenarios of any simulator."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from coulda.cli.showing import Screen
from coulda.recipes.hindsight import HindsightRecipe


@dataclass(frozen=True, kw_only=True)
class TrainHindsight(HindsightRecipe):
    """Train a network to say which scenario was behind a history: p(U | h), for a simulator without any density.

    Episodes are simulated, whose noise is known, and the network learns to tell it from what they show. It is written
    to OUT/source, which `--scenarios OUT` of evaluate, calibrate and search takes, and `Amortized.load(OUT, model)` in
    Python; the pairs are kept in OUT/pairs. Training stops where pairs that were held out say so. Ctrl-C saves, and the
    same command goes on.

    Models and policies are named `module:name` or `file.py:name`: an object, or a function that makes it.
    """

    out: Path
    """The folder for pairs, checkpoints and the source."""
    policy: Annotated[tuple[str, ...], tyro.conf.UseAppendAction] = ()
    """Who acts in the simulated episodes, beside any action, in equal shares; may be given several times. Best those
    who logged, and those that are to be evaluated."""

    def run(self) -> None:
        """Train, and say what was reached."""
        found, console = self.train(self.out), Screen(highlight=False, soft_wrap=True)
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

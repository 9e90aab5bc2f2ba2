"""`coulda calibrate --model …`: whether inferred scenarios are draws of p(U | h), where the noise is known."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import jax
import tyro
from rich.table import Table

from coulda.cli.showing import Screen, plain
from coulda.hindsight import Calibration, draw_calibration
from coulda.progress import bar
from coulda.recipes.calibration import CalibrationRecipe
from coulda.report import Figure, Report, provenance, save_report
from coulda.report.page import check_place
from coulda.storage import replace_file, replace_json

STYLES = {"calibrated": "green", "not calibrated": "red", "says nothing more than the prior": "yellow"}
CAPTION = (
    "Ranks of the truth among the draws, over simulated episodes. Where draws are right, all ranks are as frequent, "
    "and 99 of 100 bars end in the gray band. Heaps at one end: the draws are shifted. Heaps at both: they are too "
    "narrow; in the middle: too wide. The last panel is the share of episodes whose truth lies in a region that holds "
    "so many of the draws."
)


@dataclass(frozen=True)
class Calibrate:
    """Is a source of scenarios to be believed? Simulate episodes whose noise is known, and infer it.

    CF-PE runs policies on scenarios drawn from p(U | h), what may have been behind a history. If those draws are right,
    then the noise that really was behind it is like one of them: no rank among them is likelier than another. This is
    asked of coordinates of the noise, of log p(h | u), of the distance to a random point (TARP), and of each policy's
    counterfactual return. Draws of the prior pass that too, so the share of the prior's error that hindsight removes is
    told besides.

    The verdict is "calibrated": no fault was found, and hindsight tells something; "not calibrated": which quantity,
    and how (shifted, too narrow, too wide); or "says nothing more than the prior": CF-PE would be MB-PE. A right source
    is found at fault once in a hundred times. That the model is right is not asked: `coulda evaluate` holds it against
    a log.

    Models, policies and sources are named `module:name` or `file.py:name`: an object, or a function that makes it. A
    model may be a Gymnasium environment, as it is: its class, or a function that makes one.
    """

    model: str
    """The model, in which episodes are simulated."""
    policy: Annotated[tuple[str, ...], tyro.conf.UseAppendAction] = ()
    """A policy whose counterfactual returns are ranked; may be given several times. Any action by default."""
    scenarios: str = "auto"
    """Where scenarios come from: exact, observed, particles, tempered, inverted, nuts, prior; the folder of a trained
    source (`coulda train-hindsight`), or corrected:FOLDER; or a function of the model that returns a source. By default
    the first of those that can infer them."""
    steps: tuple[int, ...] = ()
    """The values of t, each asked by itself: scenarios given the first t observations; the whole episode by default."""
    episodes: int = 500
    """The number of simulated episodes, for each t. Four times as many find what is half as large."""
    draws: int = 63
    """The number of scenarios drawn for each episode."""
    discount: float = 1.0
    """The discount of the returns that are ranked; 1 is none."""
    seed: int = 0
    """The seed of everything that is drawn: the same seed gives the same numbers."""
    out: Path | None = None
    """A folder for calibration.json and calibration.svg, and for the report that `coulda report` makes a page of."""

    def run(self) -> None:
        """Print what was found; write it where asked."""
        if self.out is not None:
            self.out.mkdir(parents=True, exist_ok=True)  # before the work: a wrong path should cost nothing
            check_place(self.out)
        recipe = self._recipe()
        with bar("choosing where scenarios come from", None):
            why = recipe.choice.why
        total = self.episodes * max(len(self.steps), 1)
        with bar(f"calibrating on {self.episodes:,} simulated episodes", total) as advance:
            found = recipe.calibrate(jax.random.key(self.seed), advance)
        console = Screen()
        console.print(table(found))
        console.print(f"Scenarios: {plain(why)}.", highlight=False)
        headline, *others = found.sentences
        console.print(f"[{STYLES[found.verdict]}]{plain(headline)}[/]", highlight=False)
        for sentence in others:
            console.print(plain(sentence), highlight=False)
        if self.out is not None:
            self._write(self.out, found)
            console.print(f"`coulda report {self.out}` makes a page of it.", highlight=False, soft_wrap=True)

    def _recipe(self) -> CalibrationRecipe:
        sizes = self.episodes, self.draws, self.discount
        return CalibrationRecipe(self.model, self.policy, self.scenarios, self.steps, *sizes)

    def _write(self, out: Path, found: Calibration) -> None:
        picture = draw_calibration(found)
        replace_json(out / "calibration.json", found.plain())
        replace_file(out / "calibration.svg", picture.encode())
        # By the last part of their paths, which differ between machines.
        names = {"model": self.model, "scenarios": self.scenarios}
        config = {key: Path(value).name for key, value in names.items()}
        config |= {"steps": list(self.steps), "episodes": self.episodes, "draws": self.draws, "discount": self.discount}
        figure = Figure("Ranks and coverage", CAPTION, picture)
        facts = provenance({"calibrate": self.seed}, config)
        title = f"Whether to believe the scenarios of {found.source}"
        save_report(out, Report(title, found.sentences, figures=(figure,), provenance=facts))


COMMANDS = Calibrate


def table(found: Calibration) -> Table:
    """The quantities for the terminal."""
    shown = Table("quantity", "adjusted p", "error removed", "draws", title="ranks of the truth among the draws")
    for one in found.quantities:
        removed = "" if one.skill is None or one.skill_error is None else f"{one.skill:.0%} ± {one.skill_error:.1%}"
        how = f"[red]{plain(one.how)}[/]" if one.how else "no fault found"
        shown.add_row(plain(one.label), f"{one.adjusted:.2g}", removed, how)
    return shown

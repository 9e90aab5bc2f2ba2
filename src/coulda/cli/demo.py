"""`coulda demo`: Alice's story, end to end."""

from dataclasses import dataclass
from pathlib import Path

import jax
from rich.console import Console
from rich.panel import Panel
from rich.table import Table

from coulda.experiments import alice


@dataclass(frozen=True)
class Demo:
    """Tell Alice's story: what was seen, what is inferred, and what would have been; and draw it."""

    out: Path = Path("report")
    """Where the pictures go."""
    seed: int = 0
    """Of the posterior draws."""

    def run(self) -> None:
        """Print the story, write the pictures."""
        console = Console()
        self.out.mkdir(parents=True, exist_ok=True)  # before the work: a wrong path should cost nothing
        console.print(Panel(alice.__doc__ or "", title="Woulda, coulda, shoulda"))
        with console.status("inferring the scenario that she was in …"):
            story, _ = alice.ask(jax.random.key(self.seed))
        table = Table("what", "satisfaction", title="Alice, in hindsight")
        table.add_row("the first company, as it went", f"{story.factual:+.2f}")
        table.add_row("the second, as predicted before anything was known", f"{story.before:+.2f}")
        table.add_row("the second, had she joined it", f"{story.counterfactual:+.2f} ± {story.standard_error:.2f}")
        console.print(table)
        console.print(
            f"In {story.probability_better:.0%} of the worlds that agree with all she knows now, "
            "the second company would have been the better choice."
        )
        console.print(
            f"How the noise was inferred: {story.method} (effective samples: {story.effective_sample_size:,.0f})."
        )
        for path in alice.draw(self.out):
            console.print(f"drawn: {path}")


COMMANDS = Demo

"""`make pictures`: Alice's SCM, the paper's Figure 1, a calibration, an episode of Sokoban; as the pages show them."""

import tempfile
from pathlib import Path

import jax

from coulda.cli import main
from coulda.environments import tiger
from coulda.experiments import alice, figure_1
from coulda.hindsight import Exact, calibrate, draw_calibration
from coulda.policies import TabularPolicy
from coulda.storage import replace_file

DOCS = Path(__file__).parent
FOLDER = DOCS / "_static"


def calibration(path: Path) -> None:
    """The example of docs/calibration.md."""
    model = tiger(horizon=6, reparameterization="gumbel_max")
    bold = TabularPolicy([[0.1, 0.0, 0.9], [0.1, 0.9, 0.0], [1.0, 0.0, 0.0]])
    found = calibrate(jax.random.key(0), Exact(model), model, {"bold": bold})
    replace_file(path, draw_calibration(found).encode())
    print(path)


def sokoban_episode(path: Path) -> None:
    """A level that takes many moves, from the command line."""
    with tempfile.TemporaryDirectory() as folder:
        levels = f"{folder}/levels.txt"
        main(["sokoban", "generate", levels, "--n", "1"])
        main(["sokoban", "render", levels, str(path)])


if __name__ == "__main__":
    for path in (*alice.draw(FOLDER), *figure_1.draw(FOLDER)):
        print(path)
    calibration(FOLDER / "calibration.svg")
    sokoban_episode(DOCS / "sokoban_episode.png")

"""Figures: the same bytes each time, and a notebook's backend as it was."""

from collections.abc import Callable
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pytest

from coulda.evaluation import Comparison, Estimate, Interval
from coulda.evaluation.drawing import STEPS, draw_errors
from coulda.studies import impala, relatives, sepsis, sepsis_control

INTERVAL = Interval(0.5, 1.5, 0.95, "student")
ESTIMATES = {
    "MB-PE": Estimate("MB-PE", 1.2, INTERVAL, np.ones(4), 4.0, details={STEPS: 0}),
    "CF-PE(3)": Estimate("CF-PE(3)", 1.1, INTERVAL, np.ones(4), 4.0, details={STEPS: 3}),
    "WIS": Estimate("WIS", None, None, np.ones(4), 0.0),
}
COMPARISON = Comparison({"careful": ESTIMATES, "bold": ESTIMATES}, np.ones(4), {"careful": 1.0, "bold": 2.0})
ROWS = [dict.fromkeys(("observed", "WIS", "WIS held out", "MB-PE", "CF-PE", "true"), i / 3) for i in range(4)]
PAIRING = [
    {"scenarios an episode": count, "second": "0.1-soft", "times fewer episodes": 2.0}
    | {"paired deviation": 0.5, "unpaired deviation": 0.7}
    for count in sepsis_control.SCENARIOS
]
CURVES = {name: {"updates": [0, 1], "returns": [[0.0, 1.0], [0.5, 2.0]]} for name in ("GPS", "MB-PS")}
RECORD = {
    "curve": [{"frames": 1e6 * i, "solved": 0.1 * i} for i in range(3)],
    "processor seconds": 60.0,
    "recipe": {"world": "7x7"},
}


def written(draw: Callable[..., None], *what) -> Callable[[Path], bytes]:
    def make(path: Path) -> bytes:
        draw(*what, path)
        return path.read_bytes()

    return make


DRAWINGS = {
    "estimates": lambda path: COMPARISON.plot().save(path.with_suffix(".png")).read_bytes(),
    "errors": lambda path: draw_errors(COMPARISON).save(path.with_suffix(".png")).read_bytes(),
    "terms": lambda _: ESTIMATES["MB-PE"].plot()._repr_svg_().encode(),
    "difference": lambda _: COMPARISON.difference("MB-PE", "careful", "bold").plot()._repr_svg_().encode(),
    "sepsis": written(sepsis.draw_estimates, ROWS),
    "pairing": written(sepsis_control.draw_pairing, PAIRING),
    "relatives": lambda _: relatives.draw("GPS", CURVES).encode(),
    "impala": lambda _: impala.draw(RECORD).encode(),
}


@pytest.fixture
def backend():
    """One that nothing would choose by itself."""
    before = mpl.get_backend()
    mpl.use("svg")
    yield "svg"
    mpl.use(before)


@pytest.mark.parametrize("name", DRAWINGS)
def test_a_figure_has_the_same_bytes_each_time_and_leaves_the_backend_alone(tmp_path, backend, name):
    first, second = (DRAWINGS[name](tmp_path / f"{number}") for number in range(2))
    assert first == second
    assert first.startswith(b"\x89PNG") or first.endswith(b"</svg>\n")
    assert mpl.get_backend() == backend

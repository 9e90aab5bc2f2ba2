"""The picture of a calibration: rank histograms with their bands, and the coverage curve. Needs the extra `plots`."""

from typing import Any

import numpy as np
import scipy

from coulda.drawing import as_svg, new_figure
from coulda.hindsight.calibration import ALPHA, DISTANCE, Calibration, Quantity

COLUMNS, BINS = 4, 16
RIGHT, WRONG, BAND = "#33658a", "#b3261e", "#d9d9d9"


def draw_calibration(calibration: Calibration) -> str:
    """An SVG: a panel a quantity, red where its ranks are uneven, and one for TARP's coverage.

    Of a right source 99 of 100 bars end in the gray band, and the whole curve stays in its own with probability 0.99.
    """
    panels = len(calibration.quantities) + 1
    rows = -(-panels // COLUMNS)
    figure = new_figure(2.9 * COLUMNS, 1.9 * rows)
    axes = figure.subplots(rows, COLUMNS, squeeze=False).ravel()
    for axis, quantity in zip(axes, calibration.quantities, strict=False):
        _ranks(axis, calibration, quantity)
    _coverage(axes[panels - 1], calibration)
    for axis in axes[panels:]:
        axis.set_axis_off()
    return as_svg(figure)


def _ranks(axis: Any, calibration: Calibration, quantity: Quantity) -> None:
    low, high = scipy.stats.binom.interval(1 - ALPHA, calibration.episodes, 1 / BINS)
    axis.axhspan(low, high, color=BAND, zorder=0)
    counts = calibration.histogram(quantity, BINS)
    axis.bar(np.arange(BINS), counts, width=0.9, color=WRONG if quantity.how else RIGHT)
    axis.set(
        xticks=[-0.5, BINS - 0.5], xticklabels=["0", str(calibration.draws)], ylim=(0, max(counts.max(), high) * 1.1)
    )
    axis.set_title(quantity.label, fontsize=9)
    axis.tick_params(labelsize=8)


def _coverage(axis: Any, calibration: Calibration) -> None:
    levels = np.linspace(0, 1, 41)
    width = scipy.stats.kstwo.isf(ALPHA, calibration.episodes)
    axis.fill_between(levels, np.clip(levels - width, 0, 1), np.clip(levels + width, 0, 1), color=BAND)
    for quantity in calibration.quantities:
        if quantity.name == DISTANCE:
            color = WRONG if quantity.how else RIGHT
            label = None if quantity.steps is None else f"t = {quantity.steps}"
            axis.plot(*calibration.coverage(quantity.steps), color=color, label=label)
            if label is not None:
                axis.legend(fontsize=8)
    axis.set(xlabel="level", xlim=(0, 1), ylim=(0, 1))
    axis.set_title("coverage of random balls (TARP)", fontsize=9)
    axis.tick_params(labelsize=8)

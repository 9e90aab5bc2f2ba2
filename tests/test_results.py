"""The page of results says what the files under results/ say, and those are what today's code would write."""

import json
import re
import runpy
import shutil
from dataclasses import asdict

import jax
import numpy as np
import pytest

from coulda.experiments import mismatch, policy_evaluation, policy_search
from coulda.experiments.reproduction import FIGURES, ingredients
from tests.conftest import ROOT

RESULTS = ROOT / "results"
PAGE = ROOT / "docs" / "results.md"
make_page = runpy.run_path(str(ROOT / "docs" / "make_results.py"))["page"]

PRESETS = {
    "quick": ("quick", None),
    "desktop": ("desktop", None),
    "desktop-7x7": ("desktop", "7x7"),
    "desktop-10x10": ("desktop", "10x10"),
}
MADE = [(folder, figure) for folder in PRESETS for figure in FIGURES if (RESULTS / folder / f"{figure}.json").exists()]
made = lambda *figures: [f"{folder}/{figure}.json" for folder, figure in MADE if figure in figures]


def read(name: str) -> dict:
    return json.loads((RESULTS / name).read_text())


def test_the_page_is_made_from_the_results():
    assert PAGE.read_text() == make_page(), "the page is not what `make results` makes"


@pytest.fixture
def altered(tmp_path):
    """The page after the number at `place` of a file has become another."""

    def make(name: str, *place: str | int) -> str:
        for path in RESULTS.glob("**/*.json"):
            copy = tmp_path / path.relative_to(RESULTS)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, copy)
        found = read(name)
        *parents, last = place
        row = found
        for key in parents:
            row = row[key]
        row[last] = 2 * row[last] + 1
        (tmp_path / name).write_text(json.dumps(found))
        return make_page(tmp_path)

    return make


@pytest.mark.parametrize(
    ("name", "place"),
    [
        *((name, ("over seeds", 9, "relative error")) for name in made("evaluation")[:2]),
        ("desktop-10x10/evaluation.json", ("truth", 1, "value")),
        *((name, ("final", "IMPALA", "solved", "mean")) for name in ("desktop-7x7/search.json", "desktop/search.json")),
        ("desktop-10x10/search.json", ("final", "IMPALA", "return", "low")),
        ("desktop-7x7/planners.json", ("final", "CF-GPS, mcts", "solved", "mean")),
        ("desktop/mismatch.json", ("t", "1", "divergence")),
        ("desktop/models.json", ("scenario model", 1, "exact")),
        ("evaluation/sepsis.json", ("ours", "MB-PE", 0)),
        ("benchmarks/elbo.json", ("times_torch", "4")),
    ],
)
def test_another_number_makes_another_page(altered, name, place):
    assert altered(name, *place) != PAGE.read_text()


def test_numbers_are_rounded_to_the_nearest():
    """Of π2 in the quick evaluation: 1.06645, 0.6472 at t = 0 and 0.1965 at t = 5."""
    assert re.search(r"\| π2 \| 1\.07 \| 0\.65 \| 0\.20 \|", PAGE.read_text())


@pytest.mark.parametrize("page", [PAGE, RESULTS / "NOTES.md"], ids=lambda page: page.name)
def test_what_the_page_links_to_is_there(page):
    links = re.findall(r"\]\(([^)#]+)\)|^```\{image\} (\S+)", page.read_text(), re.M)
    assert links
    missing = [link for pair in links for link in pair if link and not (page.parent / link).exists()]
    assert not missing


@pytest.mark.parametrize(("folder", "figure"), MADE)
def test_results_are_of_the_presets_that_the_code_has(folder, figure):
    preset, world = PRESETS[folder]
    today = json.loads(json.dumps(asdict(FIGURES[figure].preset(ingredients(preset, world, 0), preset))))
    assert read(f"{folder}/{figure}.json")["preset"] == today


def assert_alike(found, expected) -> None:
    """Equal, but for the last bits of numbers."""
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for ours, theirs in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert ours == (theirs if isinstance(theirs, str) else pytest.approx(theirs))


@pytest.mark.parametrize("name", made("evaluation"))
def test_errors_follow_from_the_estimates(name):
    found = read(name)
    bare = [{k: v for k, v in row.items() if "error" not in k or k == "standard error"} for row in found["estimates"]]
    summary = policy_evaluation.summarize(found["truth"], bare)
    assert_alike(summary, {key: found[key] for key in summary})


@pytest.mark.parametrize("name", [*made("search", "planners"), "desktop/search-scenario-weights.json"])
def test_what_a_search_came_to_follows_from_its_runs(name):
    found = read(name)
    assert_alike(policy_search.summarize(found["runs"]), found["final"])


def test_no_result_is_large():
    large = [path.name for path in RESULTS.rglob("*") if path.is_file() and path.stat().st_size > 150_000]
    assert not large


def test_all_crosses_of_a_mismatch_are_a_small_picture():
    rng = np.random.default_rng(0)
    embedding = [rng.normal(0, 0.4, (mismatch.SHOWN, 2)).round(3).tolist(), np.full((mismatch.SHOWN, 2), 0.9).tolist()]
    picture = mismatch.draw({t: {"divergence": 0.02, "embedding": embedding} for t in ("0", "1", "40")})
    assert picture.count("<image") == 6  # a density and crosses in each panel
    assert len(picture) < 150_000

"""Every Python block of the documentation and the README runs, top to bottom, one namespace a page."""

import importlib.util
import json
import re
import sys

import jax
import pytest

from tests.conftest import ROOT

PAGES = sorted([*ROOT.glob("docs/**/*.md"), ROOT / "README.md"])
WORLDS_PAGE = ROOT / "docs" / "worlds.md"


def blocks(page) -> str:
    """The page's Python, with the blank lines of the rest, so that a traceback names the page's own line."""
    text = page.read_text()
    source = [
        "\n" * text[: m.start(1)].count("\n") + m[1] for m in re.finditer(r"^```python\n(.*?)^```", text, re.M | re.S)
    ]
    lines: list[str] = []
    for block in source:
        lines += block.split("\n")[len(lines) :]
    return "\n".join(lines)


def write_files(page, folder) -> bool:
    """Write the files that a page shows, blocks that begin with a comment such as `# my.py`; whether there are any."""
    files: dict[str, str] = {}
    for name, block in re.findall(r"^```python\n# (\w+\.py)\n(.*?)^```", page.read_text(), re.M | re.S):
        files[name] = files.get(name, "") + block
    for name, content in files.items():
        (folder / name).write_text(content)
    return bool(files)


WITH_CODE = [page for page in PAGES if "_build" not in page.parts and blocks(page).strip()]


SLOW = {
    ROOT / "docs" / page
    for page in (
        "calibration.md",
        "explanations.md",
        "hindsight.md",
        "policy_search.md",
        "pomdp.md",
        "reference/recipes.md",
        "report.md",
        "scm.md",
        "training.md",
        "tutorials/abbeel.md",
        "fitting.md",
        "tutorials/gymnasium.md",
        "tutorials/only_a_csv.md",
        "tutorials/stable_baselines3.md",
        "tutorials/when_a_fitted_model_misleads.md",
        "tutorials/when_counterfactuals_mislead.md",
        "tutorials/your_own_simulator.md",
        "walks.md",
    )
}
"""Pages that cost five seconds of a processor or more; those that a newcomer reads first are not among them."""


NEEDS = {ROOT / "docs" / "tutorials" / "stable_baselines3.md": "stable_baselines3"}
"""Pages about somebody else's package, which is not installed here; `test_policies_peers` runs them where it is."""


@pytest.mark.parametrize(
    "page",
    [pytest.param(page, marks=[pytest.mark.slow] if page in SLOW else []) for page in WITH_CODE],
    ids=lambda page: str(page.relative_to(ROOT)),
)
def test_page_runs(page, tmp_path, monkeypatch):
    if page in NEEDS:
        pytest.importorskip(NEEDS[page])
    monkeypatch.chdir(tmp_path)
    write_files(page, tmp_path)
    # Readers do not work in our strict mode.
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        exec(compile(blocks(page), str(page), "exec"), {"__name__": "__main__"})


def test_the_tutorials_are_found():
    assert ROOT / "docs" / "tutorials" / "alice.md" in WITH_CODE


FILES = {"evaluation": 25, "search": 20}
"""How many files each walk enters, without those of the world that is walked in: it may fall, and not rise."""
WORLD = ("environments", "policies", "networks")
"""Which world, which policy and which network is the reader's choice."""


@pytest.mark.slow
@pytest.mark.parametrize("name", ["evaluation", "search"])
def test_walks_are_short_and_go_down(name, tmp_path):
    walks = load_page("walks")
    walk = walks.WALKS[name](tmp_path / name)
    own = [file for file in walk.files if walks.room(file) not in WORLD]
    assert len(own) <= FILES[name], own
    assert [call for call in walk.upward() if call[0] not in walks.HANDED_DOWN] == []
    picture = (ROOT / "docs" / "_static" / f"walk_{name}.svg").read_text()
    assert boxes(picture) == boxes(walks.draw(walk)), f"the walk has changed: python docs/walks.py {name}"


def boxes(picture: str) -> list[str]:
    """The names of the files, in order; what a file's docstring says of it may change."""
    return re.findall(r'font-weight="bold"[^>]*>([^<]*)<', picture)


def test_a_walk_that_goes_up_is_seen():
    walks = load_page("walks")
    walk = walks.Walk({("", "cli/search.py"): None, ("cli/search.py", "noise.py"): None})
    assert walk.upward() == []
    walk.calls["noise.py", "cli/search.py"] = None
    assert walk.upward() == [("noise.py", "cli/search.py")]


def load_page(name: str):
    spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / f"{name}.py")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_table_of_worlds_is_made_of_the_results():
    rows = re.findall(r"^\| (\w+) \| ([\w ]+) \| ([-.\d]+) \| ([-.\d]+) \| ([-.\d]+) \|", WORLDS_PAGE.read_text(), re.M)
    assert len(rows) == 8
    for world, policy, *numbers in rows:
        found = json.loads((ROOT / "results" / "worlds" / f"{world}.json").read_text())["wrong model"][policy]
        for number, estimate in zip(numbers, found.values(), strict=True):
            assert number == f"{estimate['value']:.{len(number.partition('.')[2])}f}"


@pytest.mark.slow
def test_a_world_is_evaluated_and_drawn(tmp_path):
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        found = load_page("worlds").make("queue", tmp_path / "queue.svg", episodes=8, truth=8)
    assert set(found["wrong model"]["balance"]) == {"MB-PE", "CF-PE", "on-policy"}
    assert (tmp_path / "queue.svg").read_text().startswith("<?xml")


MAKES = {
    "docs/_static/alice": "pictures",
    "docs/_static/calibration": "pictures",
    "docs/_static/figure_1": "pictures",
    "docs/_static/walk_": "pictures",
    "docs/sokoban_episode": "pictures",
    "docs/_static/explorer": "screenshots",
    "docs/_static/report_": "screenshots",
    "docs/_static/world_": "worlds",
    "results/": "studies",
}
"""How pictures' names begin, and the command of the Makefile that makes them."""


def test_every_picture_is_made_by_a_command():
    pictures = {
        (page.parent / name).resolve().relative_to(ROOT).as_posix()
        for page in PAGES
        if "_build" not in page.parts
        for name in re.findall(r"[\w./-]+\.(?:svg|png)(?=[\s)\"])", page.read_text())
        if "/" in name or (page.parent / name).exists()
    }
    assert len(pictures) > 15
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M)
    for picture in pictures:
        assert (ROOT / picture).exists(), picture
        assert next(make for start, make in MAKES.items() if picture.startswith(start)) in targets, picture

"""Every Python block of the documentation and the README runs, top to bottom, one namespace a page."""

import re

import jax
import pytest

from tests.conftest import ROOT

PAGES = sorted([*ROOT.glob("docs/**/*.md"), ROOT / "README.md"])


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


WITH_CODE = [page for page in PAGES if "_build" not in page.parts and blocks(page).strip()]


SLOW = [ROOT / "docs" / "tutorials" / "when_counterfactuals_mislead.md"]


@pytest.mark.parametrize(
    "page",
    [pytest.param(page, marks=[pytest.mark.slow] if page in SLOW else []) for page in WITH_CODE],
    ids=lambda page: str(page.relative_to(ROOT)),
)
def test_page_runs(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    # Readers do not work in our strict mode.
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        exec(compile(blocks(page), str(page), "exec"), {"__name__": "__main__"})


def test_the_tutorials_are_found():
    assert ROOT / "docs" / "tutorials" / "alice.md" in WITH_CODE

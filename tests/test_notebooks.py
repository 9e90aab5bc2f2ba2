"""What a notebook and an interactive shell show: short, escaped, each doubt once, and errors that name the argument."""

from dataclasses import replace
from html.parser import HTMLParser

import jax
import numpy as np
import pytest
from gymnasium import spaces

from coulda import CouldaError, collect, compare
from coulda.environments import tiger
from coulda.episodes import Schema, checked_log
from coulda.evaluation import Comparison, Diagnostic, Estimate, Interval
from coulda.evaluation.estimate import unsupported
from coulda.evaluation.table import ByName
from coulda.policies import UniformPolicy
from coulda.progress import bar, drawn

TERMS = np.random.default_rng(0).normal(size=1000)
SMALL = Diagnostic("effective sample size", 3.0, "caution", "Only 3 episodes carry it.")
WIS = Estimate("WIS", float(TERMS.mean()), Interval(-0.1, 0.1, 0.95, "bca"), TERMS, 3.0, diagnostics=(SMALL,))
FINE = replace(WIS, method="CF-PE", diagnostics=(), terms=TERMS + 1, value=float(TERMS.mean() + 1))
LACKING = [unsupported(name, "no probabilities", "The log lacks probabilities.", len(TERMS)) for name in ("IS", "DR")]
HOSTILE = '<script>alert("x")</script><b a=\'"'


def table(*policies: str) -> Comparison:
    rows = ByName({row.method: row for row in (*LACKING, WIS, FINE)})
    shifted = ByName({name: replace(row, terms=row.terms - i) for i, (name, row) in enumerate(rows.items())})
    return Comparison(ByName({name: (rows, shifted)[i % 2] for i, name in enumerate(policies)}), TERMS, {})


LOG = checked_log(
    Schema(spaces.Discrete(2), spaces.Discrete(2), observation_names=(HOSTILE, "well")),
    observation=np.tile([0, 1, 1], 400),
    action=np.tile([0, 1], 400),
    reward=np.arange(800.0),
    lengths=np.full(400, 2),
    terminated=np.ones(400, bool),
)


class Tags(HTMLParser):
    def __init__(self, text: str):
        super().__init__()
        self.tags, self.text, self.open = set(), "", []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.open.append(tag)
        assert not [name for name, _ in attrs if name.startswith("on") or name in ("src", "href")]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


def test_what_a_shell_shows_is_short():
    shown = table("bold", "careful")
    every = [shown, WIS, LOG, shown.difference("CF-PE", "bold", "careful")]
    assert max(len(repr(one)) for one in every) < 160
    assert all(part in str(shown) for part in ("bold", "careful", "CF-PE", "no probabilities", "do not trust"))


def test_what_a_notebook_shows_says_it_all_and_escapes_every_name():
    shown = table("bold", HOSTILE)
    for one in (shown, WIS, LOG, shown.difference("CF-PE", "bold", HOSTILE)):
        page = Tags(one._repr_html_())
        assert "script" not in page.tags
    page = Tags(shown._repr_html_())
    assert {"table", "svg", "circle"} <= page.tags
    assert page.text.count(HOSTILE) >= len(shown.estimates["bold"])
    assert "Only 3 episodes carry it." in page.text
    assert page.text.count("The log lacks probabilities.") == 1
    assert HOSTILE in LOG.schema.sentence
    assert "400" in Tags(LOG._repr_html_()).text
    assert "trust" in Tags(FINE._repr_html_()).text
    # The twin: what is marked as HTML is not escaped.
    assert "script" in Tags(f"<p>{HOSTILE[:27]}</p>").tags


def test_a_doubt_is_said_once_with_all_that_it_is_about():
    said = {one.sentence: one for one in table("bold", "careful").doubts()}
    assert len(said) == 2
    assert said["The log lacks probabilities."].about == "bold and careful (IS, DR)"
    assert said["Only 3 episodes carry it."].verdict == "caution"


def test_policies_are_told_apart_by_the_method_that_is_trusted():
    """CF-PE of the second has terms that are 3 lower, episode by episode: the difference has no spread at all."""
    (one,) = table("bold", "careful").differences()
    assert (one.method, one.verdict, one.policies) == ("CF-PE", "trust", ("bold", "careful"))
    assert one.value == pytest.approx(3)
    assert len(table("a", "b", "c").differences()) == 3
    assert table("bold").differences() == []


def test_frames_have_a_row_for_each_estimate():
    pytest.importorskip("pandas")
    shown = table("bold", "careful")
    frame = shown.to_frame()
    assert list(frame["method"]) == ["IS", "DR", "WIS", "CF-PE"] * 2
    assert frame["value"].isna().sum() == 4
    assert WIS.to_frame()["verdict"].item() == "caution"
    assert shown.difference("CF-PE", "bold", "careful").to_frame()["value"].item() == pytest.approx(3)
    assert len(LOG.to_frame()) == 1200


def test_errors_name_the_argument_and_what_there_is():
    shown, model, policy, key = (
        table("bold"),
        tiger(horizon=3, reparameterization="gumbel_max"),
        UniformPolicy(2),
        jax.random.key(0),
    )
    for call, said in (
        (lambda: compare(0, LOG, {"uniform": policy}), r"key is 0.*jax\.random\.key\(0\)"),
        (lambda: compare(key, LOG, policy), "policies is a UniformPolicy, not a dict"),
        (lambda: compare(key, "logs", {"uniform": policy}), "log is a str.*open_log"),
        (lambda: compare(key, LOG, {"uniform": policy}, ["WIS"]), "methods has 'WIS'"),
        (lambda: collect(key, model, policy, 3), "knows 2 actions, but there are 3"),
        (lambda: shown.estimates["bald"], "no 'bald' here; there is 'bold'"),
        (lambda: shown.estimates["bold"]["FQE"], "no 'FQE' here; there is 'IS', 'DR', 'WIS' and 'CF-PE'"),
        (lambda: shown.difference("FQE", "bold", "bold"), "no 'FQE' here"),
        (lambda: WIS.plot().save("picture.bmp"), "'.bmp'; pictures are saved as .svg or .png"),
    ):
        with pytest.raises(CouldaError, match=said):
            call()
    with pytest.raises(IndexError, match=r"log\[1000\]: the log has 400 episodes, 0 to 399"):
        LOG[1000]
    with pytest.raises(TypeError, match=r"'a'.*number"):
        LOG["a"]
    assert len(list(LOG)) == 400


def test_a_notebook_has_a_bar_and_a_script_has_none(monkeypatch):
    assert 'value="3" max="9"' in drawn("episodes", 3, 9, 1.0)
    assert Tags(drawn(HOSTILE, 3, 9, 1.0)).tags == {"div", "progress"}
    display = pytest.importorskip("IPython.display")
    shown: list[str] = []

    class Handle:
        def update(self, page):
            shown.append(page.data)

    monkeypatch.setattr("coulda.progress.in_notebook", lambda: True)
    monkeypatch.setattr("coulda.progress.OFTEN", -1.0)
    monkeypatch.setattr(display, "display", lambda page, display_id: shown.append(page.data) or Handle())
    with bar("episodes", 2) as advance:
        advance(1)
        advance(1)
    assert [("1/2" in page, "2/2" in page) for page in shown] == [
        (False,) * 2,
        (True, False),
        (False, True),
        (False,) * 2,
    ]
    assert shown[-1] == ""

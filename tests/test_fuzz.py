"""Files made to harm: a little of `make faults fuzz`, and a twin that is caught."""

import pytest

from tests.programs import fuzz
from tests.programs.fuzz_cases import Case

GOOD = {"refused", "accepted as it is"}


KINDS = [pytest.param(kind, marks=pytest.mark.slow) if kind == "fitted" else kind for kind in fuzz.KINDS]
"""All; a model takes seconds to be fitted."""


@pytest.mark.parametrize("kind", KINDS)
def test_hostile_files_are_refused_or_read_as_they_are(kind):
    """Seed 1, where the study has seed 0: both are one run's luck."""
    told = list(fuzz.trials(kind, range(30), seed=1))
    assert {one["outcome"] for one in told} <= GOOD, [one for one in told if one["outcome"] not in GOOD]
    assert sum(one["outcome"] == "refused" for one in told) >= 10


@pytest.mark.slow
def test_no_file_of_thousands_does_harm():
    told = [one for kind in fuzz.KINDS for one in fuzz.in_children(kind, 260, seed=2)]
    assert len(told) >= 3000
    assert fuzz.summary(told)["bad"] == []


def test_harm_is_noticed(monkeypatch: pytest.MonkeyPatch):
    """The twin: readers that crash, hang, take memory, or say something else."""
    monkeypatch.setattr(fuzz, "SLOW", 0.05)

    def hang():
        while True:
            pass

    def outcome(read, same=True):
        return fuzz.outcome(Case("", read, lambda _: same))

    assert outcome(lambda: 1) == "accepted as it is"
    assert outcome(lambda: 1, same=False) == "accepted with other content"
    assert outcome(lambda: {}["x"]) == "crashed with KeyError"
    assert outcome(hang) == "hung"
    for size, told in ((2**40, "crashed with MemoryError"), (2**26, "took too much memory")):
        monkeypatch.setattr(fuzz, "KINDS", {"large": lambda _, n=size: lambda *_: Case("", lambda: b"x" * n, bool)})
        monkeypatch.setattr(fuzz, "MEMORY", 2**25)
        assert next(fuzz.trials("large", range(1), 0))["outcome"] == told

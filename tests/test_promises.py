"""The page of promises says what the studies under results/faults say."""

import json
import runpy
import shutil

from tests.conftest import ROOT

PAGE = ROOT / "docs" / "promises.md"
rows = runpy.run_path(str(ROOT / "docs" / "make_promises.py"))["rows"]


def test_the_promises_are_kept_in_numbers():
    page = PAGE.read_text()
    for row in rows():
        assert row in page


def test_another_number_would_be_noticed(tmp_path):
    for path in (ROOT / "results" / "faults").glob("*.json"):
        shutil.copy(path, tmp_path)
    told = json.loads((tmp_path / "fuzz.json").read_text())
    told["outcomes"]["hung"] = 1
    (tmp_path / "fuzz.json").write_text(json.dumps(told))
    page = PAGE.read_text()
    assert [row in page for row in rows(tmp_path)].count(False) == 1

"""Objects by name: what a user's own file may be."""

import os
import sys

from coulda.naming import named

FILE = """
from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Rule:
    level: float = 4.0


rule = Rule()
"""


def test_a_file_may_define_dataclasses(tmp_path):
    """They look for their module among those that are imported, where a file is not before nor afterwards."""
    (tmp_path / "ruled.py").write_text(FILE)
    assert named(f"{tmp_path / 'ruled.py'}:rule").level == 4.0
    assert "ruled" not in sys.modules


def test_a_file_that_is_named_twice_is_executed_once_unless_it_has_changed(tmp_path):
    path = tmp_path / "own.py"
    path.write_text("thing = object()\n")
    first = named(f"{path}:thing")
    assert named(f"{path}:thing") is first
    os.utime(path, ns=(0, 0))
    assert named(f"{path}:thing") is not first


def test_a_file_does_not_hide_a_module_of_its_name(tmp_path):
    (tmp_path / "os.py").write_text("thing = 1\n")
    assert named(f"{tmp_path / 'os.py'}:thing") == 1
    assert sys.modules["os"] is os

"""The public boundary is true: what `__all__` names exists, is described, and has its place in the reference."""

import ast
import importlib
import pkgutil
import re
from functools import cache
from pathlib import Path

import pytest

import coulda
from tests.conftest import ROOT
from tests.test_docs import WITH_CODE, blocks

MODULES = sorted(
    module.name
    for module in pkgutil.walk_packages(coulda.__path__, "coulda.")
    if not any(part.startswith("_") for part in module.name.split("."))
)
SETTINGS_ONLY = ("coulda.experiments", "coulda.studies")
"""Packages that are run and not imported; they have no names to offer."""
ROOMS = [
    "coulda",
    *(name for name in MODULES if name.count(".") == 1 or hasattr(importlib.import_module(name), "__path__")),
]
"""The packages, and the modules that are rooms by themselves."""
PUBLIC = [name for name in ROOMS if name not in SETTINGS_ONLY]


def test_every_public_module_says_what_it_offers():
    assert [name for name in PUBLIC if not importlib.import_module(name).__all__] == []


@pytest.mark.parametrize("module", PUBLIC)
def test_every_name_exists_and_is_described(module):
    found = importlib.import_module(module)
    assert [name for name in found.__all__ if not hasattr(found, name)] == []
    assert [name for name in found.__all__ if not defined(home(module, name))[name]] == []


@pytest.mark.parametrize("module", PUBLIC)
def test_every_name_is_in_the_reference(module):
    missing = [name for name in importlib.import_module(module).__all__ if (home(module, name), name) not in listed()]
    assert missing == []


def test_the_reference_lists_no_other_names():
    offered = {(home(module, name), name) for module in PUBLIC for name in importlib.import_module(module).__all__}
    assert listed() - offered == set()


def test_every_public_module_has_a_page():
    assert set(MODULES) - set(pages()) == set()


@pytest.mark.parametrize("page", WITH_CODE, ids=lambda page: str(page.relative_to(ROOT)))
def test_what_a_page_imports_is_public(page):
    for node in ast.walk(ast.parse(blocks(page))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "coulda":
            assert node.module in ROOMS, f"{node.module} is no public module"
            for alias in node.names:
                submodule = f"{node.module}.{alias.name}" in MODULES
                assert submodule or alias.name in importlib.import_module(node.module).__all__, ast.unparse(node)


def test_what_is_imported_late_is_what_its_room_offers():
    assert sorted(coulda._HOME) == sorted(coulda.__all__)
    for name, room in coulda._HOME.items():
        assert getattr(coulda, name) is getattr(importlib.import_module(f"coulda.{room}"), name)


@cache
def pages() -> dict[str, list[str]]:
    """The modules of the reference, each with the names that are listed of it."""
    found: dict[str, list[str]] = {}
    for page in (ROOT / "docs" / "reference").glob("*.md"):
        for module, option in re.findall(r"^\.\. automodule:: (\S+)\n   (:.*)$", page.read_text(), re.M):
            assert module not in found, f"{module} is listed twice"
            names = option.removeprefix(":members:")
            if option == ":no-members:":
                found[module] = []
            else:
                found[module] = (
                    [n.strip() for n in names.split(",")] if names else importlib.import_module(module).__all__
                )
    return found


@cache
def listed() -> set[tuple[str, str]]:
    return {(module, name) for module, names in pages().items() for name in names}


@cache
def home(module: str, name: str) -> str:
    """The module in which a name is defined, which is where the reference has it."""
    if name in defined(module):
        return module
    imports = (node for node in ast.walk(parsed(module)) if isinstance(node, ast.ImportFrom))
    (source,) = [node.module for node in imports if name in [alias.name for alias in node.names]]
    return home(source, name)


@cache
def defined(module: str) -> dict[str, bool]:
    """What a module defines, and whether it is described: by its docstring, or by the string that follows a value."""
    body = parsed(module).body
    found = {}
    for statement, after in zip(body, [*body[1:], None], strict=True):
        if isinstance(statement, ast.FunctionDef | ast.ClassDef):
            found[statement.name] = ast.get_docstring(statement) is not None
        targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
        described = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
        found |= {target.id: described for target in targets if isinstance(target, ast.Name)}
    return found


@cache
def parsed(module: str) -> ast.Module:
    return ast.parse(Path(importlib.import_module(module).__file__).read_text())

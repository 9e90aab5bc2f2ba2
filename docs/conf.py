"""Sphinx configuration."""

import re
from importlib.metadata import version as package_version
from itertools import groupby, pairwise

project = "coulda"
author = "the coulda authors"
copyright = "the coulda authors, Apache-2.0"
version = release = package_version("coulda")

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode"]
myst_enable_extensions = ["colon_fence", "dollarmath"]
myst_heading_anchors = 3
exclude_patterns = ["_build"]

html_theme = "furo"
html_title = "coulda"
html_static_path = ["_static"]

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
# People import from rooms; in which file of a room a name is made is no concern of theirs.
add_module_names = False
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True
# No members by default: what a page lists is what it names, or the `__all__` of a module.
autodoc_default_options = {"show-inheritance": True}
napoleon_google_docstring = True
# Docstrings are written in Markdown-like plain text: single backticks are code.
default_role = "literal"


def plain_docstrings(_app, what, _name, _value, _options, lines):
    """Docstrings are Markdown-like plain text; make reStructuredText of them before anything reads them."""
    # Napoleon takes what is before a colon in the first line of an attribute's for its type; an empty comment is not.
    out = ["..", ""] if what in ("attribute", "data", "property") else []
    for is_table, group in groupby(lines, key=lambda line: line.strip().startswith("|") and line.strip().endswith("|")):
        found = list(group)
        out += table(found) if is_table else text(found)
    lines[:] = out


def table(rows):
    """A table of Markdown as a list of its rows, the first of which is its head."""
    indent = rows[0][: len(rows[0]) - len(rows[0].lstrip())]
    # Columns are where the rule below the head has its bars; others, as in p(U | h), are text.
    rule = next(row for row in rows if re.fullmatch(r"[\s|:-]+", row))
    bars = [place for place, sign in enumerate(rule) if sign == "|"]
    cells = [[row[start + 1 : end] for start, end in pairwise(bars)] for row in rows if row is not rule]
    out = ["", ".. list-table::", "   :header-rows: 1", ""]
    for row in cells:
        out += [f"   {'*' if i == 0 else ' '} - {as_rst(cell.strip())}" for i, cell in enumerate(row)]
    return [indent + line for line in [*out, ""]]


def text(lines):
    """Everything else; examples stay as they are."""
    out, in_example = [], False
    for line in lines:
        in_example = line.strip().startswith(">>>") or (in_example and bool(line.strip()))
        out.append(line if in_example else as_rst(line))
    return out


def as_rst(line):
    """Code in double backticks; stars and bars elsewhere are only themselves."""
    parts = line.replace("``", "`").split("`")
    if len(parts) % 2 == 0:  # a backtick that is not closed on this line
        return re.sub(r"([*|`])", r"\\\1", line)
    escaped = [part if i % 2 else re.sub(r"([*|])", r"\\\1", part) for i, part in enumerate(parts)]
    return spaced([f"``{part}``" if i % 2 and part else part for i, part in enumerate(escaped)])


def spaced(parts):
    """Inline code ends where a word goes on: reStructuredText wants an escaped space between."""
    out = ""
    for part in parts:
        glue = (out.endswith("``") and part[:1].isalnum()) or (part.startswith("``") and out[-1:].isalnum())
        out += ("\\ " if glue else "") + part
    return out


def setup(app):
    """Before napoleon, whose priority is 500."""
    app.connect("autodoc-process-docstring", plain_docstrings, priority=400)

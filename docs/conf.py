"""Sphinx configuration."""

import re
from importlib.metadata import version as package_version

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
# No members by default: what a page lists is what it names, or the `__all__` of a module.
autodoc_default_options = {"show-inheritance": True}
napoleon_google_docstring = True
# Docstrings are written in Markdown-like plain text: single backticks are code.
default_role = "literal"


def plain_docstrings(_app, what, _name, _value, _options, lines):
    """Docstrings are Markdown-like plain text; make reStructuredText of them before anything reads them."""
    # Napoleon takes what is before a colon in the first line of an attribute's for its type; an empty comment is not.
    out = ["..", ""] if what in ("attribute", "data", "property") else []
    in_table = in_example = False
    for line in lines:
        text = line.strip()
        in_example = text.startswith(">>>") or (in_example and bool(text))
        if text.startswith("|") and text.endswith("|"):
            out += [] if in_table else ["", "::", ""]
            in_table = True
            out.append("   " + text)
            continue
        if in_table:
            out.append("")
            in_table = False
        out.append(line if in_example else as_rst(line))
    lines[:] = out


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

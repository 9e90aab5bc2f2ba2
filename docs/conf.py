"""Sphinx configuration."""

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
autodoc_default_options = {"members": True, "show-inheritance": True}
napoleon_google_docstring = True
# Docstrings are written in Markdown-like plain text: single backticks are code.
default_role = "literal"

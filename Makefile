# Everything runs from .venv, which is made from requirements.lock on first use and again only when that changes.
PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/.installed
RUFF_PATHS := src tests benchmarks docs

.DEFAULT_GOAL := help
.PHONY: help demo test test-slow check docs bench faults lock clean

help:            ## list the commands
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 14

demo: $(INSTALLED)       ## run the main job: the whole story, end to end
	$(BIN)/coulda demo

test: $(INSTALLED)       ## run the fast tests (what CI runs)
	$(BIN)/pytest -n 2 --dist worksteal

test-slow: $(INSTALLED)  ## run the slow tests only
	$(BIN)/pytest -m slow

check: $(INSTALLED)      ## format, lint, types, import layers and the fast tests
	$(BIN)/ruff format --check $(RUFF_PATHS)
	$(BIN)/ruff check $(RUFF_PATHS)
	$(BIN)/basedpyright
	$(BIN)/lint-imports
	$(BIN)/pytest -n 2 --dist worksteal

docs: $(INSTALLED)       ## build the documentation into docs/_build/html
	$(BIN)/sphinx-build --fail-on-warning --keep-going -b html docs docs/_build/html

bench: $(INSTALLED)      ## run the benchmarks, peers in environments of their own
	$(BIN)/python -m benchmarks

faults: $(INSTALLED)     ## kill training, workers, nodes and a learner, and damage files; results/faults says what came of it
	$(BIN)/python -m benchmarks.faults

lock:            ## compile requirements.lock anew (needs uv)
	uv pip compile --universal --generate-hashes --all-extras --group dev --no-header --no-emit-index-url \
	  --quiet --upgrade pyproject.toml --output-file requirements.lock

clean:           ## remove what the other commands made
	rm -rf .venv .cache docs/_build report

$(INSTALLED): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "coulda needs Python 3.11 or newer; this is " + sys.version)'
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --require-hashes --requirement requirements.lock
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	@touch $@

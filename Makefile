# Everything runs from .venv, which is made from a requirements lock on first use and again only when that changes.
PYTHON ?= python3
PYTHONS ?= 3.11 3.12 3.13
BIN := .venv/bin
INSTALLED := .venv/.installed
# The demo needs a third of the packages.
DEMO_INSTALLED := .venv/.installed-demo
COMPILE := uv pip compile --universal --generate-hashes --no-header --no-emit-index-url --quiet
RUFF_PATHS := src tests benchmarks docs
# Where the surroundings forbid bytecode, each of many processes would compile 1,400 modules of others anew.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo test test-slow docs pictures screenshots worlds studies results bench faults release lock clean

help:            ## list the commands
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 14

demo: $(DEMO_INSTALLED)  ## run the main job: the whole story, end to end
	$(BIN)/coulda demo

test: $(INSTALLED)       ## format, lint, types, import layers and the fast tests: what CI runs
	$(BIN)/ruff format --check $(RUFF_PATHS)
	$(BIN)/ruff check $(RUFF_PATHS)
	$(BIN)/basedpyright
	$(BIN)/lint-imports
	$(BIN)/pytest -n 2 --dist worksteal

test-slow: $(INSTALLED)  ## run the slow tests only
	$(BIN)/pytest -m slow

docs: $(INSTALLED)       ## build the documentation into docs/_build/html
	$(BIN)/sphinx-build --fail-on-warning --keep-going -b html docs docs/_build/html

pictures: $(INSTALLED)   ## draw Alice's model, Figure 1, a calibration, an episode and the walks: docs/_static
	$(BIN)/python docs/pictures.py
	$(BIN)/python docs/walks.py

screenshots: $(INSTALLED) demo  ## the demo's report as a browser shows it (needs chromium): docs/_static
	$(BIN)/python docs/screenshots.py report/index.html

worlds: $(INSTALLED)     ## evaluate in four worlds with something hidden, and draw docs/_static/world_*.svg
	$(BIN)/python docs/worlds.py

studies: $(INSTALLED)    ## every figure of results/ that the pages show, from scratch: days
	for world in 7x7 8x8 10x10; do $(BIN)/coulda reproduce all --preset desktop --world $$world; done
	for study in sepsis sepsis_control explanations impala pump; do $(BIN)/python -m coulda.studies.$$study; done
	$(BIN)/python -m coulda.studies.trust --generator B --worlds 300 --seed 3
	$(BIN)/python -m benchmarks.scaling

results: $(INSTALLED)    ## write docs/results.md anew, from results/*.json
	$(BIN)/python docs/make_results.py

bench: $(INSTALLED)      ## run the benchmarks, peers in environments of their own
	$(BIN)/python -m benchmarks

faults: $(INSTALLED)     ## kill training, workers, nodes and a learner, damage and forge files; results/faults says what came of it
	$(BIN)/python -m benchmarks.faults

release:         ## try the wheel in clean environments: each Python of $(PYTHONS), each extra by itself
	$(PYTHON) tests/programs/release.py $(PYTHONS)

lock:            ## compile both locks anew (needs uv)
	$(COMPILE) --upgrade --all-extras --group dev pyproject.toml --output-file requirements.lock
	$(COMPILE) --constraint requirements.lock --extra plots --extra sokoban --group build pyproject.toml \
	  --output-file requirements-demo.lock

clean:           ## remove what the other commands made
	rm -rf .venv .cache docs/_build report

$(INSTALLED): requirements.lock pyproject.toml
	$(call install,requirements.lock)
	@touch $@ $(DEMO_INSTALLED)

$(DEMO_INSTALLED): requirements-demo.lock pyproject.toml
	$(call install,requirements-demo.lock)
	@touch $@

# Bytecode is written when a module is first imported, which few of all ever are.
define install
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "coulda needs Python 3.11 or newer; this is " + sys.version)'
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --no-compile --require-hashes --requirement $(1)
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable .
endef

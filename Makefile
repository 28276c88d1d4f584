# Everything runs in a virtual environment of its own; the first target that needs it creates it.
# Another interpreter: make setup PYTHON=python3.13 VENV=.venv-3.13

PYTHON ?= python3
VENV ?= .venv
SAMPLE ?= traces/training-dataloader.json.gz
TESTS ?=
BENCH ?= replay
SECONDS ?= 60
SEED ?= 0
ARGS ?=
CHROMIUM ?= chromium

BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
BUILT_FROM := pyproject.toml $(shell find analyzer -name '*.pyx' -o -name '*.pxd' -o -name '*.h' -o -name loops.py)

.DEFAULT_GOAL := help
.PHONY: help setup demo check check-browser check-extras check-torch check-huggingface check-lightning check-mcp check-notebook fuzz lint types test test-plain bench format docs dist clean

help: ## show this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1#\2/p' $(firstword $(MAKEFILE_LIST)) | awk -F'#' '{printf "%-22s%s\n", $$1, $$2}'

setup: $(INSTALLED) ## create the virtual environment and install the project with what its tests need

$(INSTALLED): $(BUILT_FROM)
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

$(BIN)/advise: $(BUILT_FROM) # what the command itself needs
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable .
	@touch $@

demo: $(BIN)/advise ## say where the wall time of a sample trace went
	$(BIN)/advise $(SAMPLE)

check: lint types test test-plain ## style, types and tests: what has to pass

check-browser: $(VENV)/.browser ## the HTML report in headless Chromium; another one: make check-browser CHROMIUM=PATH
	@command -v $(CHROMIUM) >/dev/null || { echo 'no $(CHROMIUM): apt-get install chromium, or CHROMIUM=PATH' >&2; exit 1; }
	ADVISE_BROWSER=$$(command -v $(CHROMIUM)) $(BIN)/python -m pytest tests/browser $(TESTS)

$(VENV)/.browser: $(INSTALLED)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[browser]'
	@touch $@

EXTRAS := $(VENV)-extras

EXTRA_TESTS := tests/integrations tests/record tests/test_docs.py tests/test_docs_blocks.py
with_notebook := nbclient ipykernel

check-extras: check-torch check-huggingface check-lightning check-mcp check-notebook ## PyTorch on the CPU, trainers, agents, notebooks: the tests that need them, each in an environment of its own

check-torch: EXTRA_TESTS += tests/roofline/test_flop_counter.py # imports torch
check-torch check-huggingface check-lightning: first := torch==2.13.0
check-torch check-huggingface check-lightning check-mcp check-notebook: check-%:
	@$(EXTRAS)/$*/bin/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(EXTRAS)/$*
	$(if $(first),$(EXTRAS)/$*/bin/python -m pip install --quiet --disable-pip-version-check $(first))
	$(EXTRAS)/$*/bin/python -m pip install --quiet --disable-pip-version-check pytest $(if $(with_$*),--editable . $(with_$*),--editable '.[$*]')
	$(EXTRAS)/$*/bin/python -m pytest -m $* $(EXTRA_TESTS) $(TESTS)

lint: $(INSTALLED) ## ruff: lints and formatting
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(INSTALLED) ## mypy, strict
	$(BIN)/mypy

test: $(INSTALLED) ## the tests alone; some of them: make test TESTS='-k window'
	$(BIN)/python -m pytest -n auto $(TESTS)

test-plain: $(INSTALLED) ## the tests of what is compiled, with the Python that stands in for it
	ADVISE_PLAIN=1 $(BIN)/python -m pytest -n auto tests/ingest tests/timelines tests/graph tests/replay tests/advice/test_golden.py

bench: $(INSTALLED) ## measure speed and memory; others of tests/benchmarks: make bench BENCH=html ARGS='--operations 1000'
	$(BIN)/python tests/benchmarks/bench_$(BENCH).py $(ARGS)

fuzz: $(INSTALLED) ## hostile inputs of every kind; longer: make fuzz SECONDS=3600; again the same: SEED=7
	$(BIN)/python -m tests.fuzz --seconds $(SECONDS) --seed $(SEED) $(ARGS)

format: $(INSTALLED) ## rewrite the code as the formatter wants it
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(INSTALLED) ## refresh what the README and docs/ show of the program
	$(BIN)/python -m tests.readme

dist: $(INSTALLED) ## build the source archive and the wheel into dist/
	$(BIN)/python -m build

clean: ## remove what was built, the virtual environment included
	rm -rf $(VENV) $(EXTRAS) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis

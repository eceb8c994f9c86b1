# Two commands do everything: `make run` (the main job) and `make test` (lint, types, tests).
# Each sets up its own virtual environment in .venv, inside the checkout. The checkout has two packages: weightloom, the library,
# and weightloom-papers in papers/. `make run` and `make bench` need only the first; the other targets install both.

PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
RUN_READY := $(VENV)/.ready-run
DEV_READY := $(VENV)/.ready-dev
DOCS_READY := $(VENV)/.ready-docs
WEB_READY := $(VENV)/.ready-web
BENCH_VENV  ?= .venv-benchmarks
BENCH_READY := $(BENCH_VENV)/.ready
BENCH  ?=
# The versions in constraints.txt are for Python 3.11 and later; some of them do not exist for 3.10, which takes the newest
# there are. `make test CONSTRAINTS=` does so with any Python.
CONSTRAINTS ?= $(shell $(PYTHON) -c 'import sys; print("--constraint constraints.txt" if sys.version_info >= (3, 11) else "")')
LOCK_VENV := .venv-lock
# `make run ARGS="--epochs 5"` passes options on to `weightloom demo`; `make serve` does likewise.
ARGS   ?=

.PHONY: help run serve test lint types unit browser docs bench lock clean

help:
	@echo "make run    set up, then run the main job: weightloom demo (ARGS=... for its options)"
	@echo "make test   set up both packages, then lint, type check and run every test"
	@echo "make serve  set up both packages, then open the local page: weightloom serve (ARGS=... for its options)"
	@echo "make docs   set up, then build the documentation of both packages into site/"
	@echo "make bench  set up, then measure speed: models.py, training.py, kernels.py, symmetry.py, operators.py, adapters.py in benchmarks/"
	@echo "make browser  install Debian's chromium for the page's tests, if it is missing and we have the rights"
	@echo "make lock   write constraints.txt again: the newest versions that both pyproject.toml files allow"
	@echo "make clean  remove the virtual environment and caches"

$(BIN)/python:
	@echo "== making a virtual environment in $(VENV)"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip

$(RUN_READY): pyproject.toml constraints.txt | $(BIN)/python
	@echo "== installing weightloom and what the demo needs (PyTorch is large: a minute or two)"
	$(BIN)/python -m pip install --quiet $(CONSTRAINTS) --editable '.[demo]'
	@touch $@

$(DEV_READY): pyproject.toml papers/pyproject.toml constraints.txt | $(BIN)/python
	@echo "== installing weightloom and the tools for development (a few minutes the first time)"
	$(BIN)/python -m pip install --quiet $(CONSTRAINTS) --editable '.[dev]' --editable './papers[all]'
	@touch $@

run: $(RUN_READY)
	@echo "== weightloom demo $(ARGS)"
	$(BIN)/weightloom demo $(ARGS)

$(WEB_READY): pyproject.toml papers/pyproject.toml constraints.txt | $(BIN)/python
	@echo "== installing weightloom and what the page needs (a few minutes the first time)"
	$(BIN)/python -m pip install --quiet $(CONSTRAINTS) --editable '.[web]' --editable ./papers
	@touch $@

serve: $(WEB_READY)
	@echo "== weightloom serve $(ARGS)"
	$(BIN)/weightloom serve $(ARGS)

test: lint types unit

lint: $(DEV_READY)
	@echo "== lint"
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(DEV_READY)
	@echo "== types"
	$(BIN)/mypy

unit: $(DEV_READY) browser
	@echo "== tests"
	$(BIN)/pytest -n 2

$(DOCS_READY): pyproject.toml papers/pyproject.toml constraints.txt | $(BIN)/python
	@echo "== installing what builds the documentation"
	$(BIN)/python -m pip install --quiet $(CONSTRAINTS) --editable '.[docs]' --editable ./papers
	@touch $@

# Strict: a broken link or an unknown name stops it. (Not with --quiet, which would hide warnings from --strict.)
docs: $(DOCS_READY)
	@echo "== documentation"
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "== site/index.html is ready; with search: $(BIN)/python -m http.server --directory site --bind 127.0.0.1 8000"

# The page is tested in a real browser. Without one those tests are skipped, and say so.
browser:
	@if [ -n "$$WEIGHTLOOM_CHROMIUM" ] || command -v chromium >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null; then :; \
	elif ! command -v apt-get >/dev/null; then echo "== no Chromium, and no apt-get to install it with: browser tests are skipped"; \
	elif [ "$$(id -u)" = 0 ]; then echo "== installing chromium for the page's tests (apt-get)"; \
	    apt-get install -y -qq chromium >/dev/null || { apt-get update -qq && apt-get install -y -qq chromium >/dev/null; } || echo "== that failed: browser tests are skipped"; \
	elif sudo -n true 2>/dev/null; then echo "== installing chromium for the page's tests (sudo apt-get)"; \
	    sudo -n apt-get install -y -qq chromium >/dev/null || echo "== that failed: browser tests are skipped"; \
	else echo "== no Chromium: browser tests are skipped (sudo apt-get install chromium)"; fi

# An environment of its own: the peers are old and ask for much that they do not use.
$(BENCH_READY): pyproject.toml constraints.txt
	@echo "== making $(BENCH_VENV) with weightloom and its peers"
	$(PYTHON) -m venv $(BENCH_VENV)
	$(BENCH_VENV)/bin/python -m pip install --quiet --upgrade pip
	$(BENCH_VENV)/bin/python -m pip install --quiet $(CONSTRAINTS) --editable '.[train,plot,kernels,hf]'
	$(BENCH_VENV)/bin/python -m pip install --quiet --no-deps \
	    hypnettorch==0.0.4 hyperlight==0.0.5 hyper-nn==0.2.2 torchhyper==0.1.2 \
	    rebasin==0.0.47 torchview==0.2.7 graphviz==0.21 \
	    linear_operator==0.6.1
	@touch $@

bench: $(BENCH_READY)
	@echo "== speed (a quiet machine, please; BENCH=... for options, --help lists them)"
	$(BENCH_VENV)/bin/python benchmarks/models.py $(BENCH)
	$(BENCH_VENV)/bin/python benchmarks/training.py
	$(BENCH_VENV)/bin/python benchmarks/kernels.py
	$(BENCH_VENV)/bin/python benchmarks/symmetry.py
	$(BENCH_VENV)/bin/python benchmarks/operators.py
	$(BENCH_VENV)/bin/python benchmarks/adapters.py

# From an environment that holds nothing else. A build's suffix (torch 2.13.0+cpu) is left out, so that the pin fits every build.
lock:
	@echo "== making $(LOCK_VENV) with the newest versions (a few minutes)"
	rm -rf $(LOCK_VENV)
	$(PYTHON) -m venv $(LOCK_VENV)
	$(LOCK_VENV)/bin/python -m pip install --quiet --upgrade pip
	$(LOCK_VENV)/bin/python -m pip install --quiet --editable '.[dev]' --editable './papers[all]'
	$(LOCK_VENV)/bin/python -m pip freeze --all --exclude-editable --exclude pip --exclude wheel > $(LOCK_VENV)/freeze.txt
	{ grep '^#' constraints.txt; sed 's/+.*//' $(LOCK_VENV)/freeze.txt; } > constraints.new
	mv constraints.new constraints.txt
	rm -rf $(LOCK_VENV)
	@echo "== constraints.txt is new: make test, then commit it"

clean:
	rm -rf $(VENV) $(BENCH_VENV) $(LOCK_VENV) site .pytest_cache .mypy_cache .ruff_cache .hypothesis

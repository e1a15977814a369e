SHELL := /bin/bash
PYTHON ?= $(shell command -v python3.11 || command -v python3)
JOBS ?= 2
BIN := $(CURDIR)/.venv/bin
# Two intra-op threads on a busy machine can be a hundred times slower than one: parallel over runs instead.
export OMP_NUM_THREADS := 1

.DEFAULT_GOAL := help
.PHONY: help workbook site test test-full lint unit notebooks-smoke notebooks-check audit browser lab clean

help:  ## show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 18

# The virtual environment, made again only when what it holds has changed.
.venv/.installed: requirements.lock pyproject.toml
	@test -n "$(PYTHON)" || { echo "fedlib needs Python 3.11 or newer: install it, or say 'make PYTHON=/path/to/python'." >&2; exit 2; }
	@test -x .venv/bin/python || $(PYTHON) -m venv .venv
	@$(BIN)/python -c 'import sys; sys.exit(sys.version_info < (3, 11) and "fedlib needs Python 3.11 or newer: remove .venv and say make PYTHON=/path/to/python3.11.")'
	@echo "Installing the pinned packages into .venv (once)" >&2
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.lock
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

workbook: .venv/.installed  ## regenerate every notebook from the run records (missing runs are trained), and the site, into build/
	@$(BIN)/fedlib run --scale laptop --jobs $(JOBS)
	@$(BIN)/fedlib site --notebooks build/notebooks/laptop

site: .venv/.installed  ## the static site of the committed notebooks, into build/site
	@$(BIN)/fedlib site

test: lint unit notebooks-smoke notebooks-check audit  ## everything CI runs: lint, tests, notebooks, audit

test-full: lint .venv/.installed  ## test, with the slow tests too
	@$(BIN)/python -m pytest -n $(JOBS) --dist worksteal tests
	@$(MAKE) --no-print-directory notebooks-smoke notebooks-check audit

lint: .venv/.installed  ## ruff, its formatter, the floors of the package, the types of its lower floors
	@$(BIN)/ruff check . && $(BIN)/ruff format --check --quiet . && $(BIN)/lint-imports --no-cache && $(BIN)/mypy

# One worker more than cores: many of these tests wait for processes to stall, to be killed, to end.
unit: .venv/.installed  ## unit and oracle tests
	@$(BIN)/python -m pytest -n $$(($(JOBS) + 1)) --dist worksteal --durations=15 -m "not slow" tests

notebooks-smoke: .venv/.installed  ## train and execute every notebook at the smallest scale
	@$(BIN)/fedlib run --scale smoke --jobs $(JOBS)

notebooks-check: .venv/.installed  ## nbval: the committed notebooks still show what they showed, from the records alone
	@FEDLIB_TRAIN=0 FEDLIB_DATA=$(CURDIR)/build/no-data FEDLIB_STORE=$(CURDIR)/papers/runs $(BIN)/python -m pytest -n $(JOBS) --dist loadfile \
		--nbval --nbval-cell-timeout 600 notebooks

audit: .venv/.installed  ## re-run cheap committed records; fails if a number moved
	@$(BIN)/fedlib audit --sample 4 --seconds 120

browser:  ## Chromium for the browser tests, from the machine's package manager
	@command -v chromium chromium-browser google-chrome >/dev/null || apt-get install -y chromium

lab: .venv/.installed  ## open the notebooks in JupyterLab
	@$(BIN)/jupyter lab notebooks

clean:  ## remove build/, with your own runs (never the committed records)
	@rm -rf build

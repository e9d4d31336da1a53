# Two commands: `make demo` and `make test`. Each does all of its own set-up,
# without sudo, on a machine that has git, make and a Python from 3.11 to 3.13.

SHELL := /bin/bash
.DEFAULT_GOAL := help

export UV_PYTHON_DOWNLOADS := never
export UV_PROJECT_ENVIRONMENT := .venv
# No command of this project talks to a tracking or telemetry host on its own.
export MLFLOW_DISABLE_TELEMETRY := true
export DO_NOT_TRACK := true
export LITELLM_LOCAL_MODEL_COST_MAP := True
# Some tests start an interpreter, and each process of pytest reads every file: compiled ones take
# half the time. Where Python may not write beside its sources, they are in .bytecode.
unexport PYTHONDONTWRITEBYTECODE
export PYTHONPYCACHEPREFIX := $(CURDIR)/.bytecode

BIN := .venv/bin
STAMP := .venv/.combee-synced

# How many processes run the tests, each file in one of them.
WORKERS ?= 2
PYTEST := $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile

# A journal waits for the disk at every commit. Where memory has a file system with 4 GB to spare, what
# tests write is there, and is gone with them: `make test-again` leaves what a failed test wrote.
MEMORY = $(shell df -kP /dev/shm 2>/dev/null | awk 'NR == 2 && $$4 > 4000000 { print $$6 }')
IN_MEMORY = $(if $(MEMORY),scratch=$$(mktemp -d $(MEMORY)/combee-XXXXXX) && trap 'rm -rf $$scratch' EXIT && TMPDIR=$$scratch)

.PHONY: help setup demo test test-slow test-all test-again test-versions test-plugins docs check bench studies studies-run format lock clean

help:
	@echo "make demo    a recorded run of a real model; then a real, tiny one gets better on held-out examples"
	@echo "make test    lint, types and all tests but the slow ones (WORKERS=2 processes)"
	@echo "make test-all  the same, and then the slow ones"
	@echo "make test-versions  what we rely on of DSPy, gepa and MLflow, with the oldest and the newest of each"
	@echo "make test-plugins  the suites of the plugins that need environments of their own (SUITES=\"ray appworld\")"
	@echo "make docs    the site, into docs/_build: warnings are errors"
	@echo "make check   lint and types only"
	@echo "make bench   Combee against dspy.GEPA on the simulated service"
	@echo "make studies the tables of studies whose results are committed (studies-run: run that on a real model)"
	@echo "make clean   remove everything the commands above made"

$(STAMP): uv.lock pyproject.toml $(wildcard plugins/*/pyproject.toml)
	@bash tests/bootstrap.sh sync
	@touch $(STAMP)

setup: $(STAMP)

demo: setup
	$(BIN)/combee demo --recorded
	$(BIN)/combee demo --log-dir "$$(mktemp -d)/demo"

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check --quiet .
	$(BIN)/mypy --num-workers $(WORKERS)

test: check
	$(IN_MEMORY) $(PYTEST) -m "not slow"

test-slow: setup
	$(PYTEST) -m slow

test-all: test test-slow

# What failed before, by itself: a machine that others use as well starves a test of threads now and
# then. Where nothing is known to have failed this fails.
test-again: setup
	$(BIN)/python -m pytest --last-failed --last-failed-no-failures none

# Two environments of their own below .versions, from the index.
test-versions: setup
	@bash tests/versions/run.sh

# Each builds what it needs in the user's cache. One that cannot run here fails; MISSING=skip only lists it.
# AGAIN=yes tries one that failed once more.
test-plugins: setup
	@bash tests/plugins/run_suites.sh $(SUITES)

# What only the site needs comes with it. A dead link and a public name without a docstring fail.
docs: setup
	@bash tests/bootstrap.sh docs
	$(BIN)/sphinx-build -q -W --keep-going -b html docs docs/_build
	COMBEE_SITE=docs/_build $(BIN)/python -m pytest -q tests/tracking/test_screens.py -k site

bench: setup
	$(BIN)/combee bench speed

# The tables of studies whose results are committed, and the studies themselves: OPTIONS="--lm …".
studies: setup
	cd plugins/bench && ../../$(BIN)/python -m studies.real.tables studies/real/cells.jsonl
	cd plugins/bench && ../../$(BIN)/python -m studies.real.readers studies/real/cells.jsonl
	cd plugins/bench && ../../$(BIN)/python -m studies.unseen.tables studies/unseen/results.jsonl

studies-run: setup
	cd plugins/bench && ../../$(BIN)/python -m studies real $(OPTIONS)

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

lock:
	@bash tests/bootstrap.sh lock

clean:
	rm -rf .venv .bytecode .versions .tools .pytest_cache .mypy_cache .ruff_cache .hypothesis combee_runs build dist docs/_build docs/api docs/tutorials docs/cli.md

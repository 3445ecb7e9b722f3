# All targets use .venv, which `make setup` builds from requirements.lock. `make help` lists the targets.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.PHONY: help setup test quick faults fuzz matrix lint format docs demo bench lock clean

VENV := .venv
BIN := $(VENV)/bin
RUN := $(BIN)/python
STAMP := $(VENV)/.complete
PYTHON ?=

export PIP_DISABLE_PIP_VERSION_CHECK := 1

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-7s %s\n", $$1, $$2}' Makefile

setup: $(STAMP) ## build .venv from requirements.lock; does nothing if it is up to date (PYTHON=... chooses one)

# The stamp is written last: whatever was interrupted is finished by the next run.
$(STAMP): requirements.lock pyproject.toml
	@good() { "$$1" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }; \
	if ! good $(RUN); then \
		python=; \
		for candidate in $(or $(PYTHON),python3.11 python3.12 python3.13 python3.14 python3); do \
			if good "$$candidate"; then python="$$candidate"; break; fi; \
		done; \
		if [ -z "$$python" ]; then \
			echo "setup: no Python 3.11 or newer with venv and pip found; install one, or name it: make setup PYTHON=/path/to/python3.11" >&2; \
			exit 1; \
		fi; \
		echo "setup: creating $(VENV) with $$("$$python" --version)"; \
		"$$python" -m venv --clear $(VENV); \
	fi
	@echo "setup: installing what requirements.lock pins"
	@$(RUN) -m pip install --quiet --require-hashes --requirement requirements.lock
	@echo "setup: installing astha itself"
	@$(RUN) -m pip install --quiet --no-deps --no-build-isolation --editable .
	@touch $@
	@echo "setup: done"

# Each process has servers of its own; a file's tests stay together, because they share them.
PARALLEL = -n $(or $(JOBS),2) --dist loadfile

test: setup ## run all tests on SQLite and PostgreSQL, the quick ones first (JOBS=2 processes)
	$(RUN) -m pytest -q $(PARALLEL) -m "not slow and not long"
	@# pytest exits with 5 if, and only if, nothing carries the mark.
	$(RUN) -m pytest $(PARALLEL) -m "slow and not long" || [ $$? -eq 5 ]

quick: setup ## run the quick tests
	$(RUN) -m pytest -q $(PARALLEL) -m "not slow and not long"

faults: setup ## run the oracle and the lake test with random faults (SEED=... repeats a run, MINUTES=... runs longer)
	SEED="$(SEED)" MINUTES="$(or $(MINUTES),5)" $(RUN) -m pytest -s tests/faults tests/e2e

# Each fuzzer gets an equal share of the time.
FUZZERS = tests/fuzz --ignore tests/fuzz/test_runner.py

fuzz: setup ## fuzz every reader of outside input (MINUTES=... in all, SEED=... repeats a run)
	@count=$$($(RUN) -m pytest --collect-only -q $(FUZZERS) | grep -c ::); \
	each=$$(( $(or $(MINUTES),10) * 60 / count )); \
	echo "fuzz: $$count fuzzers, $$each seconds each"; \
	SEED="$(SEED)" FUZZ_SECONDS=$$each $(RUN) -m pytest -s $(FUZZERS)

matrix: setup ## run what depends on PostgreSQL on versions 14 to 18 (VERSIONS="14 18" chooses; fetches them, needs Java)
	$(RUN) -m tests.matrix $(VERSIONS)

lint: setup ## check style, types and the direction of imports
	$(RUN) -m ruff check
	$(RUN) -m ruff format --check
	$(RUN) -m mypy
	$(BIN)/lint-imports

format: setup ## format the code
	$(RUN) -m ruff check --fix --quiet
	$(RUN) -m ruff format

docs: setup ## generate docs/settings.md from the settings' models
	@$(RUN) -m astha.cli settings --markdown > docs/settings.md

demo: setup ## show Astha at work on SQLite and a private PostgreSQL (ARGS="--segments 100000" is shorter)
	@$(RUN) -m components.commands.demo $(ARGS)

bench: setup ## run all benchmarks (ARGS="--quick" is shorter)
	@$(RUN) -m benchmarks $(ARGS)

lock: setup ## update requirements.lock from pyproject.toml (ARGS="--upgrade" takes the newest versions)
	@$(BIN)/uv pip compile pyproject.toml --extra dev --universal --python-version 3.11 --generate-hashes \
		--no-emit-index-url --no-emit-find-links --no-header --quiet --output-file requirements.lock $(ARGS)
	@echo "lock: requirements.lock holds $$(grep -c == requirements.lock) packages"

clean: ## remove .venv and all caches of tools
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

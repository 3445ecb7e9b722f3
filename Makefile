# All targets use .venv, which `make setup` builds from requirements.lock. `make help` lists the targets.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.PHONY: help setup test quick faults fuzz matrix thorough dynamodb cockroach rck systemd bundle compose image lint format docs statements manifests demo bench lock clean

VENV := .venv
BIN := $(VENV)/bin
RUN := $(BIN)/python
STAMP := $(VENV)/.complete
PYTHON ?=

export PIP_DISABLE_PIP_VERSION_CHECK := 1

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-9s %s\n", $$1, $$2}' Makefile

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

thorough: setup ## run what `make test` leaves out for its time: more databases and storages, the whole demo
	$(RUN) -m pytest -q -m long tests/contracts tests/deploy/demo tests/e2e tests/integration

dynamodb: setup ## run verbs, source, daemon, lake and oracle on DynamoDB Local (fetches it, needs Java; SEED=... MINUTES=...)
	SEED="$(SEED)" MINUTES="$(MINUTES)" $(RUN) -m pytest -q $(PARALLEL) -k dynamodb \
		tests/contracts tests/integration/registry tests/integration/astha tests/faults tests/e2e

# URL is that of any database, by a user who may create databases, such as cockroachdb://root@127.0.0.1:26257/defaultdb?sslmode=disable
cockroach: setup ## run all verbs, the source and the oracle on a CockroachDB cluster (URL=cockroachdb://...)
	@test -n "$(URL)" || { echo "make cockroach URL=cockroachdb://user@host:26257/defaultdb"; exit 2; }
	COCKROACH_URL="$(URL)" $(RUN) -m pytest -q -k "cockroach" -m "long or not long" tests/contracts tests/integration tests/faults

rck: setup ## run Iceberg's REST Compatibility Kit and Spark SQL against `astha catalog` (fetches them, needs Java)
	$(RUN) -m pytest -q -m "slow or long" tests/rck tests/integration/components/commands/catalog

systemd: setup ## boot a machine and run the units and the installer on it (root; builds the machine once, with debootstrap)
	$(RUN) -m pytest -ra tests/deploy/systemd -m long

EXTRAS = kafka lake mqtt otel spark streams

bundle: setup ## make dist/astha-VERSION.tar.gz for machines with systemd: wheel, pinned packages' hashes, installer (EXTRAS=...)
	@$(RUN) -m deploy.bundle $(EXTRAS)

lint: setup ## check style, types and the direction of imports
	$(RUN) -m ruff check
	$(RUN) -m ruff format --check
	$(RUN) -m mypy
	$(BIN)/lint-imports

format: setup ## format the code
	$(RUN) -m ruff check --fix --quiet
	$(RUN) -m ruff format

docs: setup ## generate docs/reference/settings.md from the settings' models, and build the site in build/site, without warnings
	@$(RUN) -m astha.cli settings --markdown > docs/reference/settings.md
	@NO_MKDOCS_2_WARNING=1 $(RUN) -m mkdocs build --strict
	@echo "docs: build/site/index.html"

statements: setup ## record the SQL of this revision's code for the test of schema compatibility (some minutes)
	@$(RUN) -m tests.integration.operations.record_statements

manifests: setup ## build deploy/kubernetes/rendered with kustomize (fetches it if there is none, needs Go then)
	@$(RUN) -m tests.deploy.kubernetes.manifests

compose: setup ## run the services of deploy/docker/compose.yaml as processes, with real servers
	$(RUN) -m pytest -ra -m long tests/deploy/docker/test_demo.py

image: setup ## build the container images and run them, with docker, podman or buildah (needs root for buildah)
	$(RUN) -m pytest -s -m long tests/deploy/docker

demo: setup ## show Astha at work, command by command, and stay up until Ctrl-C (STAY=0: end by itself)
	@$(RUN) -m deploy.demo $(if $(filter 0,$(STAY)),--no-stay) $(ARGS)

bench: setup ## run all benchmarks (ARGS="--quick" is shorter)
	@$(RUN) -m benchmarks $(ARGS)

PIN = $(BIN)/uv pip compile --universal --python-version 3.11 --generate-hashes \
	--no-emit-index-url --no-emit-find-links --no-header --quiet
IMAGE_EXTRAS = --extra kafka --extra lake --extra mqtt --extra otel --extra streams
IMAGE_PIN = $(PIN) --constraint requirements.lock

# The images get the versions that the tests use: their files are subsets of requirements.lock.
lock: setup ## update requirements.lock and those of the images from pyproject.toml (ARGS="--upgrade" takes the newest versions)
	@$(PIN) pyproject.toml --extra dev --output-file requirements.lock $(ARGS)
	@$(IMAGE_PIN) deploy/docker/requirements-build.in --output-file deploy/docker/requirements-build.lock
	@$(IMAGE_PIN) pyproject.toml $(IMAGE_EXTRAS) --output-file deploy/docker/requirements-daemon.lock
	@$(IMAGE_PIN) pyproject.toml $(IMAGE_EXTRAS) --extra spark --output-file deploy/docker/requirements-spark.lock
	@echo "lock: requirements.lock holds $$(grep -c == requirements.lock) packages"

clean: ## remove .venv and all caches of tools
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Everything sets itself up: Python >= 3.11, git and make are enough.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check
ALONE  := $(VENV)/.alone
READY  := $(VENV)/.ready

.PHONY: help demo test test-quick test-integrations test-long mutants chaos bench bench-peers docs dist sbom lock check format clean
.DEFAULT_GOAL := help

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

# The package and what it needs itself, which is enough to see it run.
$(ALONE): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Penstock needs Python 3.11 or newer; set PYTHON=python3.12 or so." >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(PIP) --constraint constraints.txt --editable .
	@touch $@

# What its development needs, too; pip knows --group since 25.1.
$(READY): $(ALONE)
	$(PIP) 'pip>=25.1'
	$(PIP) --constraint constraints.txt --editable . --group dev
	@touch $@

demo: $(ALONE) ## see it run, on an embedded server
	@$(BIN)/python -m penstock.demo

test: $(READY) ## the tests, on real servers that they start themselves
	$(BIN)/python -m pytest -n 4 --dist worksteal -m 'not long and not integration'

# Each verb of the engine, and what most programs use of the API: what a change breaks first.
QUICK := tests/engine tests/api/test_enqueue.py tests/api/test_results.py tests/api/test_exports.py tests/test_docs.py
# These compare with a model, stop scripts at every step, wait for real time, or make thousands of jobs.
SLOW  := model lanes_model batches_model abort growth by_letter full_server functions labels link promises reconcile set_cron silences sweep waits wide_lanes
test-quick: $(READY) ## the tests of each verb and of the basics, about a minute
	$(BIN)/python -m pytest -n 2 --dist worksteal -m 'not long and not integration' $(QUICK) $(SLOW:%=--ignore-glob='tests/engine/test_%*')

test-integrations: $(READY) ## what needs other software: the nodes of a cluster, pyright, schemathesis
	$(BIN)/python -m pytest -n 4 --dist worksteal -m 'integration and not long'

test-long: $(READY) ## what needs minutes or millions of jobs
	PENSTOCK_LONG=1 $(BIN)/python -m pytest -m 'long' --timeout 3600

mutants: $(READY) ## break guards of the Lua scripts, one at a time, and see whether a test notices; resumable
	$(BIN)/python -m tools.mutants $(if $(NUMBER),--number $(NUMBER))

SEEDS   ?= 1 2 3 4 5
SECONDS ?= 120
chaos: $(READY) ## break everything for minutes and check what jobs did: SEEDS="1 2 3" SECONDS=120 make chaos
	@$(BIN)/python -m tests.chaos --seconds $(SECONDS) $(SEEDS:%=--seed %)

bench: $(READY) ## measure this machine: Penstock beside a bare loop, a minute
	@$(BIN)/python -m benchmarks ours

bench-peers: $(READY) ## beside other job queues, too, 20 minutes; writes docs/performance.md
	@$(BIN)/python -m benchmarks peers --write

docs: $(READY) $(VENV)/.docs ## the documentation, into site/
	$(BIN)/python tools/reference.py docs/reference
	$(BIN)/zensical build --clean --strict

$(VENV)/.docs: $(READY)
	$(PIP) --constraint constraints.txt --group docs
	@touch $@

# What a release is built with: the files of requirements-release.txt, by their hashes, and nothing else.
$(VENV)/.release/.ready: requirements-release.txt
	rm -rf $(VENV)/.release
	$(PYTHON) -m venv $(VENV)/.release
	$(VENV)/.release/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes --only-binary :all: -r $<
	@touch $@

dist: $(VENV)/.release/.ready ## the sdist and the wheel, into dist/
	rm -rf dist
	$(VENV)/.release/bin/python -m build --no-isolation --outdir dist .

sbom: dist ## what an installation of the wheel consists of, as CycloneDX, into dist/
	rm -rf $(VENV)/.clean
	$(PYTHON) -m venv --without-pip $(VENV)/.clean
	$(VENV)/.release/bin/python -m pip --python $(VENV)/.clean install --quiet --disable-pip-version-check --constraint constraints.txt dist/penstock-*.whl
	$(VENV)/.release/bin/cyclonedx-py environment --pyproject pyproject.toml --spec-version 1.6 --output-reproducible --output-format JSON --output-file dist/penstock.cdx.json $(VENV)/.clean/bin/python

lock: $(READY) ## write the hashes of what a release is built with; needs the newest versions within reach
	$(BIN)/python -m tools.lock

check: $(READY) ## ruff, mypy --strict, import-linter, luacheck
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(BIN)/python tools/check_lua.py

format: $(READY) ## put the code in shape
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean: ## remove what the above made
	rm -rf $(VENV) dist site docs/reference .mypy_cache .ruff_cache .hypothesis .mutants .penstock benchmarks/.run

# Headrace. `make demo` on a fresh machine does everything; `make help` lists the rest.
#
# PYTHON     the interpreter that the virtual environment is made with (found by deploy/find_python.sh when not set)
# VENV       where that environment is
# PIP_ARGS   more arguments for pip, such as an index that carries CPU-only builds of torch
# DEMO_ARGS  more arguments for `headrace demo`
# PYTEST_ARGS  what `make test` hands to pytest
# SEED, SIM_ARGS  the only schedule that `make sim` runs, and more arguments for it (tests/testkit/sim/__main__.py)

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

VENV ?= .venv
PY := $(VENV)/bin/python
STAMP := $(VENV)/.headrace-setup
WIRE_SOURCES = $(shell cd proto && find headrace -name '*.proto' | sort)
SOURCES := headrace control_plane inference_svc trainer_svc env_svc reward_svc weightstore

# One thread for each process: the services share the machine's cores.
export OMP_NUM_THREADS ?= 1

.PHONY: help setup demo test unit contract sim integration e2e lint format types arrows proto proto-check ci clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 16

setup: $(STAMP) ## make .venv with everything that is pinned; does nothing when it is up to date

$(STAMP): pyproject.toml deploy/constraints.txt deploy/setup.sh
	@VENV="$(VENV)" deploy/setup.sh
	@touch $@

demo: setup ## set up, start every service, train the example job, report, stop everything
	@$(VENV)/bin/headrace demo $(DEMO_ARGS)

test: setup ## all tests, or those of PYTEST_ARGS
	$(PY) -m pytest $(PYTEST_ARGS)

unit contract integration e2e: setup ## one tier of the tests
	$(PY) -m pytest tests/$@ $(PYTEST_ARGS)

sim: setup ## 20,000 random schedules of the real core and turn, 500 more on PostgreSQL; SEED=n: only that one, told in full
	PYTHONPATH=tests $(PY) -m testkit.sim $(if $(SEED),--seed $(SEED)) $(SIM_ARGS)

lint: setup ## style, import arrows, wire lint
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/lint-imports
	cd proto && $(abspath $(VENV))/bin/buf lint

format: setup ## rewrite the style where it can be
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

types: setup ## mypy, strict
	$(VENV)/bin/mypy

arrows: setup ## who may import whom
	$(VENV)/bin/lint-imports

proto: setup ## generate headrace/wire from proto/
	$(PY) -m grpc_tools.protoc -I proto --python_out=. --pyi_out=. --grpc_python_out=. $(WIRE_SOURCES)

proto-check: setup ## fail if headrace/wire is not what proto/ generates
	@fresh=$$(mktemp -d) && trap 'rm -rf "$$fresh"' EXIT && \
	$(PY) -m grpc_tools.protoc -I proto --python_out=$$fresh --pyi_out=$$fresh --grpc_python_out=$$fresh $(WIRE_SOURCES) && \
	diff -r --exclude=__pycache__ --exclude=__init__.py $$fresh/headrace/wire headrace/wire && echo "headrace/wire is current"

ci: setup lint types proto-check ## what a merge needs
	$(PY) -m pytest $(PYTEST_ARGS)

clean: ## remove what was built, but not .headrace
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -not -path './.git/*' -prune -exec rm -rf {} +

# Needs GNU make and Python 3.11 or newer; everything else is installed into .venv from constraints.txt.
# Other recipes: PYTHON=/path/to/python3.12 make setup; make quickstart ARGS="--help"; make test ARGS="-k config".

SHELL := /bin/bash
.DEFAULT_GOAL := help
VENV ?= .venv
BIN := $(VENV)/bin
TORCH := 2.13.0
ARGS ?=
# The first interpreter that is new enough.
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && { echo $$p; break; }; done)
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
SOURCES := src tests quickstart

.PHONY: help setup quickstart data test lint format bench docs lock clean

help: ## list the commands
	@sed -nE 's/^([a-z]+):[^#]*## (.*)/make \1|\2/p' $(firstword $(MAKEFILE_LIST)) | \
		while IFS='|' read -r name text; do printf '%-16s %s\n' "$$name" "$$text"; done

setup: $(VENV)/.dev ## make .venv with all that development needs; does nothing when it is up to date

quickstart: $(VENV)/.train ## train a small model on this machine from start to finish (ARGS="--help" tells more)
	@$(BIN)/python quickstart/run.py $(ARGS)

data: $(VENV)/.data ## install what data prepare needs for every input, cleaning and near deduplication

# Two files of tests at a time, in order, the long ones first: many wait for processes that they start.
test: lint ## setup, lint and all tests
	@$(BIN)/python -m pytest --numprocesses 2 --dist loadfile --no-loadscope-reorder $(ARGS)

lint: setup ## ruff check, ruff format --check, mypy
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

format: setup ## let ruff rewrite what it can
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

bench: setup ## compare training speed with peers (installs each into an environment of its own under build/peers)
	@cd benchmarks/train_vs_peers && \
		$(CURDIR)/$(BIN)/python make_environments.py --into $(CURDIR)/build/peers && \
		$(CURDIR)/$(BIN)/python run.py --peers $(CURDIR)/build/peers --json $(CURDIR)/build/train_vs_peers.json $(ARGS)

docs: setup ## write the generated pages anew
	@$(BIN)/python -m meshwright.config.reference docs/configuration.md
	@$(BIN)/python docs/support_matrix.py
	@$(BIN)/python docs/device_catalogue.py

lock: ## resolve the newest versions of everything but torch and write constraints.txt
	@$(call need_python)
	rm -rf build/lock && $(PYTHON) -m venv build/lock
	build/lock/bin/python -m pip install --quiet torch==$(TORCH) '.[train,data,clean,dev]'
	@{ echo "# Every package of the environment, written by make lock. Used as pip install -c constraints.txt."; \
		echo "# torch has no build tag: on some machines pip takes a CPU build, on others the CUDA build with its own pins."; \
		build/lock/bin/python -m pip freeze --all --exclude pip --exclude meshwright | sed -E 's/\+[a-z0-9.]+$$//'; \
	} > constraints.txt
	rm -rf build/lock

clean: ## remove .venv, caches and build output; runs are kept
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache src/*.egg-info
	find src tests quickstart benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +

define need_python
	test -n "$(PYTHON)" || { echo "meshwright needs Python 3.11 or newer; set PYTHON=/path/to/python" >&2; exit 1; }
endef

$(BIN)/python:
	@$(call need_python)
	@echo "making $(VENV) with $(PYTHON)"
	@$(PYTHON) -m venv $(VENV)

# The build backend is installed from the lock too, so that nothing unpinned takes part.
$(VENV)/.train: pyproject.toml constraints.txt | $(BIN)/python
	@echo "installing meshwright[train] into $(VENV)"
	@$(INSTALL) setuptools
	@$(INSTALL) --no-build-isolation --editable '.[train]'
	@touch $@

$(VENV)/.data: pyproject.toml constraints.txt | $(BIN)/python
	@echo "installing meshwright[train,data,clean] into $(VENV)"
	@$(INSTALL) setuptools
	@$(INSTALL) --no-build-isolation --editable '.[train,data,clean]'
	@touch $(VENV)/.train $@

$(VENV)/.dev: pyproject.toml constraints.txt | $(BIN)/python
	@echo "installing meshwright[train,data,clean,dev] into $(VENV)"
	@$(INSTALL) setuptools
	@$(INSTALL) --no-build-isolation --editable '.[train,data,clean,dev]'
	@touch $(VENV)/.train $(VENV)/.data $@

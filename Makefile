# Every target makes the environment it needs when it is missing, or when what it is made from
# (pyproject.toml, constraints.txt) has changed. ARGS adds arguments: make test ARGS="-k threat"
# CONSTRAINTS names another list of versions: make test CONSTRAINTS=constraints-lowest.txt

PYTHON ?= python3
JOBS ?= 2
ARGS ?=
CONSTRAINTS ?= constraints.txt
# The published model that `make bench` attacks; without it a small one is trained.
CHECKPOINT ?= $(firstword $(wildcard resnet2b.pth ../*/checkpoints/resnet2b.pth))

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install -qq -c $(CONSTRAINTS)
# One thread per worker: the workers share the cores.
PYTEST := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 $(BIN)/python -m pytest -n $(JOBS) --dist worksteal

.DEFAULT_GOAL := help
.NOTPARALLEL:
.DELETE_ON_ERROR:
# What `make bench` compares: attacks or training.
BENCH ?= attacks

.PHONY: help quickstart test test-all test-docs coverage check docs wheel wheel-test bench clean

help:
	@echo "make quickstart  train, attack, explain and report on bundled data"
	@echo "make test        the tests that take minutes"
	@echo "make test-all    all tests, slow ones and comparisons with other implementations too"
	@echo "make test-docs   every block of the documentation, and the built site"
	@echo "make coverage    make test with branch coverage, which must not fall below its floor"
	@echo "make check       ruff, ruff format, mypy"
	@echo "make docs        the documentation, in docs/_build/html"
	@echo "make wheel-test  build the package, install it outside of this folder, and use it"
	@echo "make bench       compare attacks with other tools; BENCH=training compares training"
	@echo "make clean       remove the environment, caches and built files; runs and results stay"

quickstart: $(VENV)/.installed
	$(BIN)/buttress quickstart $(ARGS)

test: $(VENV)/.installed $(VENV)/.test
	$(PYTEST) -m "not slow and not reference" $(ARGS)

test-all: $(VENV)/.installed $(VENV)/.test
	$(PYTEST) $(ARGS)

test-docs: $(VENV)/.installed $(VENV)/.test $(VENV)/.docs
	$(PYTEST) tests/docs $(ARGS)

coverage: ARGS += --cov --cov-report=term:skip-covered --cov-report=xml
coverage: test

check: $(VENV)/.installed $(VENV)/.test $(VENV)/.lint
	$(BIN)/ruff check --no-cache .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: $(VENV)/.installed $(VENV)/.docs
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs docs/_build/html $(ARGS)
	@echo "Documentation: docs/_build/html/index.html"

wheel: $(VENV)/.installed $(VENV)/.build
	rm -rf dist
	$(BIN)/python -m buttress.cli.catalog
	$(BIN)/python -m build -o dist .
	$(BIN)/python -m twine check --strict dist/*

wheel-test: wheel
	PIP_CONSTRAINT=$(CONSTRAINTS) bash tests/wheel.sh $(PYTHON) dist/*.whl

bench: $(VENV)/.installed $(VENV)/.bench
	$(BIN)/buttress bench $(BENCH) $(if $(filter attacks,$(BENCH)),$(CHECKPOINT:%=--checkpoint %=examples/resnet2b.py:ResNet2B)) $(ARGS)

clean:
	rm -rf $(VENV) docs/_build docs/_generated build dist src/buttress/catalog.json
	rm -rf .pytest_cache .ruff_cache .mypy_cache .hypothesis .coverage coverage.xml
	find src tests docs benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +

# The environment: one stamp for Python and pip, one for the package, one per dependency group.

$(VENV)/.pip: $(CONSTRAINTS)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null || \
	  { echo "Buttress needs Python 3.10 or newer; name one with: make PYTHON=/path/to/python3" >&2; exit 1; }
	@echo "Making an environment in $(VENV) with $$($(PYTHON) --version)."
	@$(PYTHON) -m venv $(VENV)
	@$(PIP) --upgrade pip
	@touch $@

$(VENV)/.installed: $(VENV)/.pip pyproject.toml $(CONSTRAINTS)
	@echo "Installing Buttress and what it needs (PyTorch is the largest part); about two minutes the first time."
	@$(PIP) -e .
	@$(BIN)/python -m buttress.cli.catalog
	@touch $@

# The tests use every extra, so that none of them is left untested.
$(VENV)/.test: $(VENV)/.pip pyproject.toml $(CONSTRAINTS)
	@echo "Installing what the tests need, every extra included; about a minute."
	@$(PIP) -e '.[bounds,onnx,ray,tensorboard]' --group test
	@$(PIP) --no-deps imagecorruptions
	@touch $@

$(VENV)/.lint $(VENV)/.docs $(VENV)/.build $(VENV)/.bench: $(VENV)/.%: $(VENV)/.pip pyproject.toml $(CONSTRAINTS)
	@echo "Installing the packages of group $*; a few seconds."
	@$(PIP) --group $*
	@if [ $* = bench ]; then $(PIP) --no-deps torchattacks adv-lib; fi
	@touch $@

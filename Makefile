# make demo, make test: each sets up all it needs, once, and again only when pyproject.toml changed.

PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed
BENCHMARKS := $(wildcard benchmarks/[!_]*.py)

.PHONY: help demo test bench lint clean

help:
	@echo "make demo    train a small model and look inside it"
	@echo "make test    lint, then all the tests"
	@echo "make bench   all the benchmarks"
	@echo "make lint    ruff and mypy"
	@echo "make clean   remove the environment and all caches"

$(STAMP): pyproject.toml
	@echo "Setting up .venv (once; takes a minute or two)"
	@$(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[dev]"
	@touch $@

demo: $(STAMP)
	@$(BIN)/python examples/demo.py

test: lint
	$(BIN)/python -m pytest

bench: $(STAMP)
	@set -e; for file in $(BENCHMARKS); do echo "== $$file"; $(BIN)/python "$$file"; done

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

clean:
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist
	find src tests benchmarks examples -type d -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || true

# make demo, make test: each sets up all it needs, once, and again only when pyproject.toml changed.

PYTHON ?= python3
BIN := .venv/bin
# Both stamps are in .venv: what is installed there is all of it (`dev`) or enough for the demo.
DEV := .venv/.installed
DEMO := .venv/.demo
BENCHMARKS := $(wildcard benchmarks/[!_]*.py)

# What runs on the newest Python and JAX: all that needs no PyTorch and is about JAX.
NEWEST_TESTS := \
	src/sawlog/jax src/sawlog/loggers \
	tests/jax tests/sinks tests/loggers $(wildcard tests/test_ppo*.py) tests/test_loop_examples.py \
	tests/test_docs.py tests/test_imports.py tests/test_missing_packages.py

.PHONY: help demo docs test test-browser test-examples test-long test-newest test-thorough mutants fuzz bench lint clean
.NOTPARALLEL: # there is one .venv
# Else every process that a test starts compiles sawlog again.
unexport PYTHONDONTWRITEBYTECODE

help:
	@echo "make demo           train small models, look inside, and end with a page about them"
	@echo "make test           the tests"
	@echo "make lint           ruff and mypy"
	@echo "make docs           the documentation, as pages in build/docs"
	@echo "make test-browser   the pages of report and view, in Chromium"
	@echo "make test-examples  every example, also those that make test leaves out"
	@echo "make test-long      the tests that make test leaves out, because others cover most of them"
	@echo "make test-newest    the tests of the JAX half, on the newest Python and JAX"
	@echo "make test-thorough  make test and make test-newest, with all random examples, kills and pairs"
	@echo "make mutants MODULE=src/sawlog/...    break one place at a time: do the tests notice?"
	@echo "make fuzz           changed files for the store, for SECONDS=60 or more"
	@echo "make bench          all the benchmarks"
	@echo "make clean          remove the environments and all caches"

# $(call install,EXTRA). Without a stamp, .venv is missing or its set-up was interrupted: start again.
define install
	@echo "Setting up .venv for $(1) (once; takes a minute or two)"
	@test -e $(DEV) -o -e $(DEMO) || $(PYTHON) -m venv --clear .venv
	@rm -f $(DEV) $(DEMO)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[$(1)]"
	@touch $@
endef

$(DEV): pyproject.toml
	$(call install,dev)

$(DEMO): pyproject.toml
	$(call install,demo)

demo: $(if $(wildcard $(DEV)),$(DEV),$(DEMO))
	@$(BIN)/python examples/demo.py

test: $(DEV)
	$(BIN)/python -m pytest

test-long: $(DEV)
	$(BIN)/python -m pytest -m thorough

# Warnings are errors. Nothing is downloaded, and the pages load nothing from the network.
docs: $(DEV)
	$(BIN)/python -m sphinx --fresh-env --fail-on-warning --keep-going --quiet docs build/docs
	@echo "Open build/docs/index.html"

BROWSER := .venv/.browser
$(BROWSER): $(DEV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[test-browser]"
	@touch $@

test-browser: $(BROWSER)
	tools/chromium.sh
	SAWLOG_BROWSER=1 $(BIN)/python -m pytest -n0 tests/report/test_browser.py tests/report/test_browser_names.py

# Each program of examples/, and the notebooks: also those that make test leaves out.
test-examples: $(DEV)
	$(BIN)/python -m pytest -m "thorough or not thorough" tests/test_examples.py tests/test_loop_examples.py tests/test_small_examples.py

test-newest:
	SAWLOG_LEAVE_OUT=torch tools/newest_python.sh \
		tools/in_venv.sh .venv-newest test-jax -m pytest $(NEWEST_TESTS)

test-thorough: export SAWLOG_THOROUGH = 1
test-thorough: export SAWLOG_EXAMPLES = 5
test-thorough: test test-newest

mutants: $(DEV)
	@$(BIN)/python -m tools.mutants $(MODULE) $(ARGS)

SECONDS ?= 60
fuzz: $(DEV)
	$(BIN)/python tools/fuzz_store.py --seconds $(SECONDS)

bench: $(DEV)
	@set -e; for file in $(BENCHMARKS); do echo "== $$file"; $(BIN)/python "$$file"; done

lint: $(DEV)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

clean:
	rm -rf .venv .venv-newest .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist
	find src tests benchmarks examples -type d -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || true

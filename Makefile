# Two commands for a newcomer: `make demo` and `make test`. Both set everything up through `make venv`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PROSE := README.md CHANGELOG.md docs

.PHONY: venv browser demo test check format docs clean

venv: $(STAMP)

# torch comes first and by itself: pip then keeps this build instead of choosing one with CUDA.
$(STAMP): pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet 'torch==2.13.*'
	$(BIN)/pip install --quiet --editable '.[dev]'
	touch $(STAMP)

# The report is tested in Debian's Chromium; where it can't be had, those tests say so and are skipped.
browser:
	@test -x /usr/bin/chromium || test "$$(id -u)" != 0 || ! command -v apt-get >/dev/null || \
		(apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq chromium >/dev/null) || \
		echo "chromium could not be installed: the report's browser tests will be skipped"

demo: venv
	$(BIN)/plait demo

test: venv browser
	OMP_NUM_THREADS=1 $(BIN)/pytest

check: venv
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/codespell src tests examples benchmarks $(PROSE)

format: venv
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: venv
	$(BIN)/mkdocs build --strict

clean:
	rm -rf $(VENV) site .mypy_cache .ruff_cache .pytest_cache .import_linter_cache

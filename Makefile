# Two commands for a newcomer: `make demo` and `make test`. Both set everything up through `make venv`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: venv demo test check format docs clean

venv: $(STAMP)

$(STAMP): pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet 'torch==2.13.*'
	$(BIN)/pip install --quiet --editable '.[dev]'
	touch $(STAMP)

demo: venv
	$(BIN)/plait demo

test: venv
	$(BIN)/pytest

check: venv
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/codespell src tests docs examples benchmarks README.md CHANGELOG.md

format: venv
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: venv
	$(BIN)/mkdocs build --strict

clean:
	rm -rf $(VENV) site .mypy_cache .ruff_cache .pytest_cache .import_linter_cache

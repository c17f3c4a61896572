# Two commands on a fresh machine: `make demo` and `make test`. Everything lives in .venv.
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: demo test check format bench clean help

help: ## show this list
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 10

$(STAMP): pyproject.toml constraints.txt
	python3 -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,demo]'
	@touch $(STAMP)

demo: $(STAMP) ## train on real film ratings, add unseen films, write pictures to demo/
	$(BIN)/headstart demo --out demo

test: check ## everything CI runs: linters, types, layers, tests, doctests
	$(BIN)/pytest -n 2

check: $(STAMP) ## ruff, mypy (strict) and the import contract
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(STAMP) ## let ruff mend what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(STAMP) ## the hot paths against a plain dense version and bare GEMMs
	$(BIN)/python benchmarks/epochs.py

clean: ## remove the environment and everything made
	rm -rf $(VENV) demo .mypy_cache .ruff_cache .pytest_cache .hypothesis

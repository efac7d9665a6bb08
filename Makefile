# `make` lists the targets. The environment is created when it is needed, and again when its inputs change.

# PYTHON: the interpreter of the environment. JOBS: the number of test processes; the tests wait about as long as they compute. ARGS: more arguments for the tool of a
# target. SPEC: a claims file for `make promises`, which then lists the claims without a test. VERSIONS: a folder for `make docs`, which then keeps each version there.
PYTHON ?= python3
JOBS   ?= 3
ARGS   ?=
SPEC   ?=
VERSIONS ?=

# The environment's own interpreter may be the one on the PATH, so ask for the one below it.
python_version := $(shell "$(PYTHON)" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)
base_python    := import sys; print(getattr(sys, "_base_executable", None) or sys.executable)
new_enough     := import sys; sys.exit(sys.version_info < (3, 11))
dev_groups     := import tomllib; groups = tomllib.load(open("pyproject.toml", "rb"))["dependency-groups"]; print(*groups["dev"], *groups["docs"], sep="\n")

# The tests start thousands of interpreters, which would otherwise all compile the sources.
unexport PYTHONDONTWRITEBYTECODE

bin   := .venv/bin
ready := .venv/.ready-$(python_version)

.DEFAULT_GOAL := help
.PHONY: help demo test test-django check format docs cover bench bench-around bench-dashboards bench-growth bench-mix bench-operators bench-recovery bench-peers bench-workflows chaos promises screenshots walk budgets clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' Makefile
	@echo 'Variables: PYTHON=python3.12  JOBS=auto  ARGS="-k claim"'

demo: $(ready) ## start an embedded PostgreSQL and a worker, and run tasks of every kind
	$(bin)/python -m examples.demo $(ARGS)

test: $(ready) ## run the tests, in random order and in parallel
	$(bin)/pytest -n $(JOBS) --dist worksteal $(ARGS)

test-django: ## run the tests of Django with its newest release; make test-django PYTHON=python3.12 VERSION='<7'
	rm -rf .venv-django; "$(PYTHON)" -m venv .venv-django
	.venv-django/bin/python -c '$(dev_groups)' | sed 's/^django$$/django$(VERSION)/' >.venv-django/dev.txt
	grep -viE '^(django|django-stubs|django-stubs-ext|asgiref|sqlparse)==' constraints.txt >.venv-django/constraints.txt
	.venv-django/bin/python -m pip install --quiet --disable-pip-version-check --constraint .venv-django/constraints.txt \
		--requirement .venv-django/dev.txt --editable '.[dev]'
	.venv-django/bin/pytest -n $(JOBS) tests/contrib/test_django.py $(ARGS)

check: $(ready) ## check format, lint, types, import layers and budgets
	$(bin)/ruff format --check
	$(bin)/ruff check
	$(bin)/pyright --pythonpath $(bin)/python
	$(bin)/mypy
	$(bin)/lint-imports
	$(bin)/python -m tools.budgets

format: $(ready) ## format the code and apply automatic fixes
	$(bin)/ruff format
	$(bin)/ruff check --fix

docs: $(ready) ## build the documentation site in build/docs, without a warning; VERSIONS=folder adds it to a folder of all versions
	@$(bin)/python -m tools.docs $(VERSIONS)

cover: $(ready) ## run the tests and list the lines they do not cover
	$(bin)/coverage erase
	$(bin)/coverage run -m pytest -n $(JOBS) --dist worksteal $(ARGS)
	$(bin)/coverage combine --quiet
	$(bin)/coverage report

bench: $(ready) ## run the benchmarks
	$(bin)/python -m benchmarks $(ARGS)

bench-around: $(ready) ## measure what middleware, on_failure and kept log lines cost; 3 minutes
	$(bin)/python -m benchmarks.around $(ARGS)

bench-growth: $(ready) ## compare the rate with a million rows, 500 queues, an old snapshot or 62 idle workers to an empty database
	$(bin)/python -m benchmarks.growth $(ARGS)

bench-dashboards: $(ready) ## measure what 50 open pages of the dashboard cost a worker that drains a backlog; 10 minutes
	$(bin)/python -m benchmarks.dashboards $(ARGS)

bench-mix: $(ready) ## mix fast and slow tasks, and measure what waits behind what
	$(bin)/python -m benchmarks.mix $(ARGS)

bench-operators: $(ready) ## time pages of the dashboard and queries of app.ops with a million finished tasks; 5 minutes
	$(bin)/python -m benchmarks.operator_queries $(ARGS)

bench-recovery: $(ready) ## measure the time to recover from outages, lost connections and killed workers; 4 minutes
	$(bin)/python -m benchmarks.recovery $(ARGS)

bench-peers: $(ready) ## compare with other task queues on the same workloads; 45 minutes
	$(bin)/python -m benchmarks.peers $(ARGS)

bench-workflows: $(ready) ## compare the time per node of workflows of 1 000 and 50 000 nodes
	$(bin)/python -m benchmarks.workflow_scale $(ARGS)

chaos: $(ready) ## inject faults for ten minutes and check that nothing was lost
	$(bin)/python -m benchmarks.chaos $(ARGS)

promises: $(ready) ## list which promises of the specification have tests
	@$(bin)/python tests/promises.py $(if $(SPEC),"$(SPEC)")

screenshots: $(ready) ## make the screenshots of docs/dashboard.md, with Chromium; ARGS="overview phone" makes some of them
	@$(bin)/python -m tools.screenshots $(ARGS)

walk: $(ready) ## trace the files and functions that one task passes through; ARGS=--write updates docs/architecture.md
	@$(bin)/python -m tools.walk $(ARGS)

budgets: $(ready) ## check the limits on size, names and imports of src/
	@$(bin)/python -m tools.budgets $(ARGS)

clean: ## remove what the other targets created
	rm -rf .venv .venv-django benchmarks/.peers .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache .coverage .coverage.* build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Created from scratch each time, so that it equals the environment of a new clone.
# The groups are installed from a file because pip supports dependency groups only since 25.1.
$(ready): pyproject.toml constraints.txt
	@command -v "$(PYTHON)" >/dev/null || { echo 'make: no interpreter "$(PYTHON)"; choose one with PYTHON=...' >&2; exit 1; }
	@test -n "$(python_version)" || { echo 'make: "$(PYTHON)" does not run; choose another interpreter with PYTHON=...' >&2; exit 1; }
	@"$(PYTHON)" -c '$(new_enough)' || { echo 'make: horsies needs Python 3.11 or newer, and "$(PYTHON)" is $(python_version); choose another with PYTHON=python3.12' >&2; exit 1; }
	@echo 'making .venv with Python $(python_version)'
	@set -e; base=$$("$(PYTHON)" -c '$(base_python)'); rm -rf .venv; \
	if command -v uv >/dev/null; then \
		uv venv --quiet --python "$$base" .venv; \
		install='uv pip install --quiet --python $(bin)/python --build-constraints constraints.txt'; \
	else \
		"$$base" -m venv .venv; \
		install='$(bin)/python -m pip install --quiet --disable-pip-version-check'; \
	fi; \
	$(bin)/python -c '$(dev_groups)' >.venv/dev.txt; \
	PIP_CONSTRAINT=constraints.txt $$install --constraint constraints.txt --requirement .venv/dev.txt --editable '.[dev]'
	@touch $@

# The one door: `make` lists what can be done. The environment makes itself, and again when its inputs change.

# PYTHON is what the environment is made from, JOBS how many processes share the tests, ARGS more arguments for the
# tool that a target runs, SPEC a claims file in which `make promises` looks for what no test covers.
PYTHON ?= python3
JOBS   ?= 2
ARGS   ?=
SPEC   ?=

# The environment's own interpreter may be the one on the PATH, so ask for the one below it.
python_version := $(shell "$(PYTHON)" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)
base_python    := import sys; print(getattr(sys, "_base_executable", None) or sys.executable)
new_enough     := import sys; sys.exit(sys.version_info < (3, 11))
dev_group      := import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["dependency-groups"]["dev"], sep="\n")

bin   := .venv/bin
ready := .venv/.ready-$(python_version)

.DEFAULT_GOAL := help
.PHONY: help demo test check format cover bench bench-growth bench-mix bench-recovery bench-peers bench-workflows chaos promises walk budgets clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' Makefile
	@echo 'Variables: PYTHON=python3.12  JOBS=auto  ARGS="-k claim"'

demo: $(ready) ## a worker, a few tasks and their results, on a PostgreSQL of its own
	$(bin)/python -m examples.demo $(ARGS)

test: $(ready) ## the tests, in random order and in parallel
	$(bin)/pytest -n $(JOBS) --dist worksteal $(ARGS)

check: $(ready) ## layout, lint, types, who may import whom, and the budgets
	$(bin)/ruff format --check
	$(bin)/ruff check
	$(bin)/pyright --pythonpath $(bin)/python
	$(bin)/mypy
	$(bin)/lint-imports
	$(bin)/python -m tools.budgets

format: $(ready) ## lay out the code and mend what can be mended by rule
	$(bin)/ruff format
	$(bin)/ruff check --fix

cover: $(ready) ## the tests once more, with the lines they miss
	$(bin)/coverage erase
	$(bin)/coverage run -m pytest -n $(JOBS) --dist worksteal $(ARGS)
	$(bin)/coverage combine --quiet
	$(bin)/coverage report

bench: $(ready) ## the benchmarks
	$(bin)/python -m benchmarks $(ARGS)

bench-growth: $(ready) ## a million rows, 500 queues, an old snapshot, 62 idle workers: the rate beside an empty database
	$(bin)/python -m benchmarks.growth $(ARGS)

bench-mix: $(ready) ## fast and slow tasks together: who waits for whom
	$(bin)/python -m benchmarks.mix $(ARGS)

bench-recovery: $(ready) ## outages, killed connections, a full server, killed workers: how soon work goes on; 4 minutes
	$(bin)/python -m benchmarks.recovery $(ARGS)

bench-peers: $(ready) ## the same workloads for other task queues and for ours: 45 minutes
	$(bin)/python -m benchmarks.peers $(ARGS)

bench-workflows: $(ready) ## workflows of 50 000 nodes and a map of 100 000 items: the time per node beside that at 1 000
	$(bin)/python -m benchmarks.workflow_scale $(ARGS)

chaos: $(ready) ## ten minutes in which everything fails, and proof that nothing was lost
	$(bin)/python -m benchmarks.chaos $(ARGS)

promises: $(ready) ## which promises of the specification have tests
	@$(bin)/python tests/promises.py $(if $(SPEC),"$(SPEC)")

walk: $(ready) ## the files and functions that one task passes through; ARGS=--write puts them into docs/architecture.md
	@$(bin)/python -m tools.walk $(ARGS)

budgets: $(ready) ## the limits on size, names and imports of src/
	@$(bin)/python -m tools.budgets $(ARGS)

clean: ## remove everything that the other targets made
	rm -rf .venv benchmarks/.peers .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache .coverage .coverage.* build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Made from scratch each time: an environment that was repaired is not the one a newcomer gets.
# The dev group goes through a file because pip knows dependency groups only since 25.1.
$(ready): pyproject.toml constraints.txt
	@command -v "$(PYTHON)" >/dev/null || { echo 'make: no interpreter "$(PYTHON)"; choose one with PYTHON=...' >&2; exit 1; }
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
	$(bin)/python -c '$(dev_group)' >.venv/dev.txt; \
	PIP_CONSTRAINT=constraints.txt $$install --constraint constraints.txt --requirement .venv/dev.txt --editable '.[dev]'
	@touch $@

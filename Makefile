# Everything a developer or CI runs. Needs only Python 3.11+ with pip, make and git; what else is needed is installed
# into .venv. `make test PYTHON=/path/to/python3.13` tries another Python, in an environment of its own.
PYTHON ?= python3
VERSION = $(shell $(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])')
VENV := $(if $(filter python3,$(PYTHON)),.venv,.venv-$(VERSION))
BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check
# What is installed: geval with its local model, which is all that the demo needs; and everything for development.
RUNTIME := $(VENV)/.installed-runtime
STAMP := $(VENV)/.installed

.PHONY: demo test check docs bench soak clean
.DEFAULT_GOAL := test
.DELETE_ON_ERROR:

# Debian's Python has `venv` but not what puts pip into one; its own pip does that as well.
$(BIN)/python:
	@$(PYTHON) -m venv $(VENV) >/dev/null 2>&1 || { $(PYTHON) -m venv --clear --without-pip $(VENV) \
	&& $(PYTHON) -m pip --python $(BIN)/python install --quiet --disable-pip-version-check pip; }

$(RUNTIME): pyproject.toml | $(BIN)/python
	@echo "installing geval into $(VENV) ..."
	@$(INSTALL) --editable ".[local]"
	@touch $@

$(STAMP): pyproject.toml | $(BIN)/python
	@echo "installing geval and its development tools into $(VENV) ..."
	@$(INSTALL) "pip>=25.1"
	@$(INSTALL) --editable ".[local,server,js,sql,text-metrics,xlsx,parquet,remote,pdf,socks,compression,trust,mcp,otel,workers]" --group dev
	@touch $(RUNTIME) $@

# A real run with a real model: exit code 0 or 1 (judged, good or bad) is a working geval; anything else is not.
demo: $(RUNTIME)
	@$(BIN)/geval models pull smollm2
	@$(BIN)/geval run examples/configs/quickstart.yaml; code=$$?; \
	echo "geval's exit code: $$code"; \
	if [ $$code -gt 1 ]; then exit $$code; fi

test: check
	@$(BIN)/geval models pull smollm2
# Two processes more than there are processors: many tests wait for processes, browsers and servers. They share what
# pytest makes of the tests' asserts by keeping it as bytecode, also where the environment says that none is written.
	@PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -q -n $$(($$($(BIN)/python -c "import os; print(os.cpu_count() or 1)") + 2)) --dist loadgroup

check: $(STAMP)
	@$(BIN)/ruff format --check --quiet . && $(BIN)/ruff check --quiet .
	@$(BIN)/mypy

# The parts of pages and files that are made from the code.
docs: $(STAMP)
	@$(BIN)/python -m pytest -q -n 0 tests/test_generated.py --update-expected

bench: $(STAMP)
	@$(BIN)/python -m benchmarks

# Takes an hour or more; some of it: make soak PARTS="kills mutants"
soak: $(STAMP)
	@PYTHONPATH=tests $(BIN)/python -m soak $(PARTS)

clean:
	rm -rf .venv .venv-* .geval .mypy_cache .pytest_cache .ruff_cache .coverage

# Everything a developer or CI runs. Needs only Python 3.11+ (with pip and venv), make and git.
# `make test PYTHON=/path/to/python3.13` tries another Python, in an environment of its own.
PYTHON ?= python3
VERSION = $(shell $(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])')
VENV := $(if $(filter python3,$(PYTHON)),.venv,.venv-$(VERSION))
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: demo test check bench soak clean
.DEFAULT_GOAL := test

$(STAMP): pyproject.toml
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing geval and its development tools into $(VENV) ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check "pip>=25.1"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[local,server,js,text-metrics,xlsx,pdf,socks,compression]" --group dev
	@touch $@

# A real run with a real model: exit code 0 or 1 (judged, good or bad) is a working geval; anything else is not.
demo: $(STAMP)
	@$(BIN)/geval models pull smollm2
	@$(BIN)/geval run examples/configs/quickstart.yaml; code=$$?; \
	echo "geval's exit code: $$code"; \
	if [ $$code -gt 1 ]; then exit $$code; fi

test: check
	@$(BIN)/geval models pull smollm2
	@$(BIN)/python -m pytest -q -n auto --dist loadgroup

check: $(STAMP)
	@$(BIN)/ruff format --check --quiet . && $(BIN)/ruff check --quiet .
	@$(BIN)/mypy

bench: $(STAMP)
	@$(BIN)/python -m benchmarks

# Takes an hour or more; some of it: make soak PARTS="kills mutants"
soak: $(STAMP)
	@PYTHONPATH=tests $(BIN)/python -m soak $(PARTS)

clean:
	rm -rf .venv .venv-* .geval .mypy_cache .pytest_cache .ruff_cache .coverage

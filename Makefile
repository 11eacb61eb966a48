# `make` lists the targets. A machine with python3 (3.11 to 3.13) and make is enough: everything else comes from PyPI.

PYTHON ?= python3
VENV ?= .venv
# Where torch is taken from; empty: where pip takes everything else from. See README.
TORCH_INDEX ?=
# KEEP=1 keeps the demo serving, ARGS are handed to pytest, UPGRADE=1 takes new versions into constraints.txt.
KEEP ?=
ARGS ?=
UPGRADE ?=
# Where `make proto` writes; the folder protos/ is below it.
PROTO_OUT ?= .

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

BIN := $(VENV)/bin
DEMO_STAMP := $(VENV)/.installed-demo
DEV_STAMP := $(VENV)/.installed-dev
DEMO_EXTRAS := cpu,index,demo
DEV_EXTRAS := $(DEMO_EXTRAS),images,ray,dev
PIP := $(BIN)/python -m pip --disable-pip-version-check -qq

.PHONY: help
help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  \033[1m%-16s\033[0m %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

.PHONY: venv
venv: $(DEV_STAMP) ## Set everything up for development; does nothing when nothing changed

.PHONY: demo
demo: $(DEMO_STAMP) ## Build a snapshot of a sample catalogue, serve it, shop; KEEP=1 keeps serving, TORCH_INDEX=URL takes torch from there
	@$(BIN)/feedline demo $(if $(KEEP),--keep)

.PHONY: test
test: $(DEV_STAMP) ## Run the test suite; ARGS="tests/test_x.py -k name" narrows it
	@$(BIN)/python -m pytest $(ARGS)

.PHONY: soak
soak: $(DEV_STAMP) ## Run the long suite whole: 100,000 cancelled calls (a sample of it runs in `make test`)
	@FEEDLINE_CANCELS=100000 $(BIN)/python -m pytest -s -k leave_nothing_behind tests/feed/test_cancels.py

.PHONY: swaps
swaps: $(DEV_STAMP) ## Swap snapshots 100 times under load, no call failed (a sample of it runs in `make test`)
	@FEEDLINE_SWAPS=100 $(BIN)/python -m pytest -s -k swaps_under_load tests/feed/test_swap.py

.PHONY: check
check: lint types arrows proto-lint deploy-lint ## Run every check that is not a test

.PHONY: lint
lint: $(DEV_STAMP) ## Check style and formatting (ruff)
	$(BIN)/ruff check
	$(BIN)/ruff format --check

.PHONY: types
types: $(DEV_STAMP) ## Check types (mypy --strict)
	$(BIN)/mypy --strict

.PHONY: arrows
arrows: $(DEV_STAMP) ## Check who may import whom (import-linter)
	$(BIN)/lint-imports

.PHONY: fmt
fmt: $(DEV_STAMP) ## Format the code and mend what ruff can mend
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

.PHONY: proto
proto: $(DEV_STAMP) ## Generate the Python code of protos/feed.proto
	$(BIN)/python -m grpc_tools.protoc -I . \
	    --plugin=protoc-gen-mypy=$(BIN)/protoc-gen-mypy --plugin=protoc-gen-mypy_grpc=$(BIN)/protoc-gen-mypy_grpc \
	    --python_out=$(PROTO_OUT) --grpc_python_out=$(PROTO_OUT) \
	    --mypy_out=quiet:$(PROTO_OUT) --mypy_grpc_out=quiet:$(PROTO_OUT) protos/feed.proto

.PHONY: proto-lint
proto-lint: $(DEV_STAMP) ## Check protos/feed.proto: style, and no break with protos/baseline.binpb
	$(BIN)/buf lint
	$(BIN)/buf breaking --against protos/baseline.binpb

.PHONY: proto-baseline
proto-baseline: $(DEV_STAMP) ## Make today's proto the one that later ones are compared with; on a release
	$(BIN)/buf build --exclude-source-info -o protos/baseline.binpb

.PHONY: deploy-lint
deploy-lint: $(DEV_STAMP) ## Check deploy/ and the scripts; promtool, shellcheck and docker compose where they are present
	$(BIN)/hadolint --failure-threshold style deploy/Dockerfile
	$(BIN)/yamllint --strict deploy .pre-commit-config.yaml .yamllint.yaml buf.yaml
	$(BIN)/check-jsonschema --builtin-schema vendor.compose-spec deploy/compose.yaml
	@if [ -x $(BIN)/shellcheck ]; then set -x; $(BIN)/shellcheck .ci/run benchmarks/gpu.sh benchmarks/peers/install.sh; else echo "shellcheck: not on this machine, left out"; fi
	@if command -v promtool >/dev/null; then set -x; promtool check config deploy/prometheus/prometheus.yml; \
	    else echo "promtool: not on this machine, left out"; fi
	@if docker compose version >/dev/null 2>&1; then set -x; \
	    FEEDLINE_WRITE_TOKEN=x FEEDLINE_VALKEY_PASSWORD=x docker compose -f deploy/compose.yaml --profile nightly config -q; \
	    else echo "docker compose: not on this machine, left out"; fi

.PHONY: bench
bench: $(DEV_STAMP) ## Run the benchmarks of benchmarks/
	@echo "The benchmarks and their results, each with its machine, live in benchmarks/."
	@if [ -x benchmarks/run_all.sh ]; then PATH="$(abspath $(BIN)):$$PATH" benchmarks/run_all.sh; \
	    else echo "benchmarks/run_all.sh is not there yet: nothing to run."; fi

.PHONY: constraints
constraints: $(DEV_STAMP) ## Write constraints.txt from pyproject.toml, keeping pinned versions; UPGRADE=1 takes new ones
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --no-annotate $(if $(UPGRADE),--upgrade) \
	    --custom-compile-command "make constraints" $(foreach e,cpu index demo images ray dev,--extra $(e)) pyproject.toml -o constraints.txt

.PHONY: clean
clean: ## Remove the virtual environment, caches and build folders; data/ stays
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Set-up. The development environment is the demo's and more: each stamp is newer than what it was installed from, and
# whichever comes second installs only what the first left out.

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	    { echo "error: $(PYTHON) is $$($(PYTHON) --version 2>&1), 3.11 or newer is needed: make PYTHON=python3.12 ..." >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
	    { echo "error: $(PYTHON) has no venv or ensurepip module. On Debian and Ubuntu: apt-get install python3-venv" >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV)

# Without deps: the index holds torch, the rest comes from PyPI.
define install_torch
$(if $(TORCH_INDEX),@echo "Installing torch from $(TORCH_INDEX) ..."; \
    $(PIP) install --no-compile --no-deps --index-url $(TORCH_INDEX) "$$(grep '^torch==' constraints.txt)")
endef

# Not compiled ahead: a third of the library code is ever imported, and what is gets compiled then.
$(DEMO_STAMP): pyproject.toml constraints.txt | $(BIN)/python
	$(install_torch)
	@echo "Installing Feedline with its nightly job and the sample shop into $(VENV): one to four minutes, silently. About 0.7 GB of"
	@echo "downloads with CPU wheels of torch, 3 GB with CUDA, which PyPI has for x86-64 (TORCH_INDEX chooses, see README)."
	@$(PIP) install --no-compile -e '.[$(DEMO_EXTRAS)]' -c constraints.txt
	@touch $@

# Compiled ahead, since the tests turn warnings into errors, and other people's syntax warnings appear on compiling.
# Some libraries hold files for other Python versions, which cannot be compiled and are never imported.
$(DEV_STAMP): pyproject.toml constraints.txt | $(BIN)/python
	$(install_torch)
	@echo "Installing Feedline and the development tools into $(VENV): one to five minutes, silently. About 0.9 GB of downloads with"
	@echo "CPU wheels of torch, 3.2 GB with CUDA, less what is there already (TORCH_INDEX chooses, see README)."
	@$(PIP) install --no-compile -e '.[$(DEV_EXTRAS)]' -c constraints.txt
	@$(BIN)/python -W ignore -m compileall -qq -j 0 -x '/(torch/testing|tests?)/' $(VENV)/lib || true
	@touch $(DEMO_STAMP) $@

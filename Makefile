.DEFAULT_GOAL := help
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c

CACHE ?= $(HOME)/.cache/mmdisagg
PYTHON ?= $(firstword $(wildcard /usr/bin/python3.11) python3.11)
UV := $(CACHE)/uv-$(lastword $(subst ==, ,$(shell cat requirements/uv.in)))
BIN := .venv/bin
TESTBED := PYTHONPATH=e2e $(PYTHON) -m testbed
UNIT_TESTS := operator/tests workers/tests cli/tests e2e/testbed/tests
API_TESTS := e2e/api e2e/charts e2e/workflows e2e/gpu
# Installed packages are compiled once; without that every engine process would compile them again.
export UV_COMPILE_BYTECODE := 1
export PATH := $(UV)/bin:$(PATH)

.PHONY: help setup demo test test-long check lint format crds requirements clean programs testbed-up testbed-down testbed-prepare images testbed-images test-api test-cluster test-gpu

help:  ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: .venv/.ready  ## install everything into .venv (idempotent; downloads are cached under ~/.cache)

.venv/.ready: requirements/dev.txt requirements/uv.txt pyproject.toml
	@started=$$(date +%s); \
	tools/system-packages; \
	test -x $(UV)/bin/uv || python3 -m pip install --quiet --root-user-action ignore --target $(UV) --require-hashes -r requirements/uv.txt; \
	test -x $(BIN)/python || uv venv --quiet --python $(PYTHON) .venv; \
	echo "setup: installing the CPU engine and the tools into .venv (6.7 GB; about a minute once downloaded)"; \
	uv pip install --quiet --python .venv --require-hashes --no-deps -r requirements/dev.txt; \
	uv pip install --quiet --python .venv --no-deps --no-build-isolation --editable .; \
	echo $$(($$(date +%s) - started)) > .venv/.setup-seconds; touch $@

demo: setup  ## a real picture through real encode, prefill and decode, its answer beside one big engine's
	@$(BIN)/mmdisagg demo

test: setup programs lint  ## every test that this machine can run
	@$(BIN)/python -m pytest $(UNIT_TESTS) $(API_TESTS) e2e/local e2e/cluster

test-long: setup programs  ## soak, scale and fuzz counts at full length
	@MMDISAGG_LONG=1 HYPOTHESIS_PROFILE=long $(BIN)/python -m pytest $(UNIT_TESTS) $(API_TESTS) e2e/local

check: setup lint  ## lint, types, imports, docstrings, generated files, unit and emulated tests
	@$(BIN)/python -m pytest -q $(UNIT_TESTS)

lint: setup
	@$(BIN)/ruff check --quiet . && $(BIN)/ruff format --check --quiet .
	@$(BIN)/mypy
	@report=$$($(BIN)/lint-imports --no-cache) || { echo "$$report"; exit 1; }
	@$(BIN)/interrogate --quiet operator/mmdisagg_operator workers/mmdisagg_workers cli/mmdisagg_cli models bench
	@$(BIN)/interrogate --quiet -e e2e/testbed/tests e2e/testbed
	@$(BIN)/python -m mmdisagg_operator.api.crd --check crds
	@$(BIN)/python tools/charts.py --check

format: setup  ## format the code
	@$(BIN)/ruff check --fix --quiet . ; $(BIN)/ruff format --quiet .

crds: setup  ## generate crds/ from the API types
	@$(BIN)/python -m mmdisagg_operator.api.crd --write crds
	@$(BIN)/python tools/charts.py --write

requirements: setup  ## compile the requirement files again
	uv pip compile -q --generate-hashes --no-emit-index-url --no-header --no-annotate requirements/uv.in -o requirements/uv.txt
	uv pip compile -q --python .venv --override requirements/overrides.txt --generate-hashes --no-emit-index-url \
	  --no-header --no-annotate --no-emit-package nixl-cu12 requirements/dev.in -o requirements/dev.txt
	for name in router operator worker; do uv pip compile -q --python-version 3.11 --generate-hashes --no-emit-index-url \
	  --no-header --no-annotate --constraint requirements/dev.txt requirements/$$name.in -o requirements/$$name.txt; done

# Status 3: this machine cannot, and has said why; the tests that need it say it again.
programs: setup  ## compile Kubernetes and Helm for the tests, once
	@started=$$(date +%s); status=0; \
	$(TESTBED) prepare || status=$$?; \
	if [ $$status = 3 ]; then status=0; $(TESTBED) prepare --api-only || status=$$?; fi; \
	took=$$(($$(date +%s) - started)); [ $$took -lt 5 ] || echo $$took > .venv/.programs-seconds; \
	[ $$status = 0 ] || [ $$status = 3 ]

testbed-up:  ## real Kubernetes nodes on this machine (the first time it compiles Kubernetes)
	@$(TESTBED) up

testbed-down:  ## take them down, whatever state they are in
	@$(TESTBED) down

testbed-prepare:  ## compile and build what the nodes need, start nothing
	@$(TESTBED) prepare

images: setup  ## build the images: make images IMAGES="--registry REGISTRY --push"
	@$(BIN)/python images/build.py $(IMAGES)

testbed-images: setup testbed-up  ## build the images in the test bed
	@$(BIN)/python images/build.py --testbed

test-api: setup programs  ## operator and charts, with a real API server
	@$(BIN)/python -m pytest $(API_TESTS)

test-cluster: setup  ## real pods on real nodes: the test bed's, or those of MMDISAGG_E2E_KUBECONFIG
	@$(BIN)/python -m pytest e2e/cluster

test-gpu: setup  ## real Qwen2.5-VL-3B on the GPUs of KUBECONFIG's cluster
	@$(BIN)/python -m pytest e2e/gpu

clean:  ## remove what was built here (not the download cache)
	rm -rf .venv .cache build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Needs Python 3.11 or newer and make; everything else is installed into .venv.
PYTHON ?= python3
PY := .venv/bin/python
PIP := $(PY) -m pip --quiet --disable-pip-version-check
# xdist workers each get one thread: two of them share the two cores of a small machine.
TEST_ENV := OMP_NUM_THREADS=1

.DEFAULT_GOAL := help
.PHONY: help demo test lint types format times bench clean

help:  ## what there is
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 10

.venv/ready: pyproject.toml constraints-ci.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "tilec needs Python 3.11 or newer: set PYTHON")'
	$(PYTHON) -m venv .venv
	$(PIP) install -c constraints-ci.txt torch
	@$(PY) -c 'import triton' 2>/dev/null || $(PIP) install triton==3.6.0
	$(PIP) install -c constraints-ci.txt -e '.[test]'
	@$(PY) -c 'from cuda.bindings import nvrtc; nvrtc.nvrtcVersion()' 2>/dev/null \
	|| $(PIP) install cuda-bindings==13.0.3 nvidia-cuda-nvrtc==13.0.88
	@touch $@

# A demo where the Python at hand has torch keeps that torch, which knows its GPU: the new environment sees its packages.
.venv-demo/ready: pyproject.toml
	$(PYTHON) -m venv .venv-demo
	@$(PYTHON) -c 'import sys; print(*(p for p in sys.path if p.endswith("-packages")), sep="\n")' > .venv-demo/outer
	@cp .venv-demo/outer "$$(.venv-demo/bin/python -c 'import site; print(site.getsitepackages()[0])')/outer.pth"
	.venv-demo/bin/python -m pip --quiet --disable-pip-version-check install -e .
	@touch $@

demo:  ## compile an example, run it, check it against float64, print a table
	@if $(PYTHON) -c 'import torch' 2>/dev/null; \
	then $(MAKE) --no-print-directory .venv-demo/ready && .venv-demo/bin/python -m tilec.demo; \
	else $(MAKE) --no-print-directory .venv/ready && $(PY) -m tilec.demo; fi

test: lint types  ## lint, types, and every test
	$(TEST_ENV) $(PY) -m pytest -n 2

lint: .venv/ready  ## ruff: rules and format
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .

# mypy finds packages by folder, and `tilec` is put together from four: a farm of links stands in for it.
types: .venv/ready  ## mypy --strict
	@rm -rf build/types && mkdir -p build/types/tilec
	@ln -s $(CURDIR)/compiler/* $(CURDIR)/dsl $(CURDIR)/backends $(CURDIR)/targets build/types/tilec/
	MYPYPATH=build/types $(PY) -m mypy -p tilec

format: .venv/ready  ## ruff: rewrite
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .

times: .venv/ready  ## tests that take times, one after the other, on a machine with a GPU
	$(PY) -m pytest -m alone tests/device

bench: .venv/ready  ## the examples against PyTorch's own attention, on this machine's GPU
	.venv/bin/tilec bench examples/causal_gqa/spec.tile --against sdpa,cudnn,flex

clean:  ## remove what the other goals made
	rm -rf .venv .venv-demo build .mypy_cache .ruff_cache .pytest_cache .hypothesis *.egg-info

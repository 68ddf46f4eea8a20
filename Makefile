# Each target works on a machine with only make and python3 >= 3.11, and keeps everything it installs in .venv.
# Another Python:  make setup PYTHON=/path/to/python3.12

PYTHON ?= python3
BIN := .venv/bin

RUNTIME := .venv/installed
TEST := .venv/installed-test
DEV := .venv/installed-dev
BENCH := .venv/installed-bench
PEERS := .venv/installed-peers
TORCH := .venv/installed-torch
DISTRIBUTED := .venv/installed-distributed
DOCS := .venv/installed-docs
DASHBOARD := .venv/installed-dashboard
NODE := .venv/installed-node

# Modules are byte-compiled at their first import, since pip does not here; an environment that forbids it, as those of
# some containers do, would compile all of them in every process: `make demo` took twice as long.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help setup torch distributed demo live test test-all soak check lint types imports dependencies wire pages docs bench proto lock screenshots
.DEFAULT_GOAL := help

help:
	@echo "make setup   install ftrie into .venv, and compile what it runs"
	@echo "make torch   install PyTorch too, for ftrie.torch and its tests"
	@echo "make distributed  install Ray too, for ftrie train-distributed and its tests"
	@echo "make demo    the whole loop on a simulated shop: train, publish, serve, rank, train again"
	@echo "make live    the same, all the time: store, trainer, two servers and visitors, with a dashboard to watch them"
	@echo "make test    run the tests without the slow ones (CONTRIBUTING.md says how long it takes)"
	@echo "make test-all  run every test; FTRIE_TEST_DATA=FOLDER adds those on real click logs (CONTRIBUTING.md)"
	@echo "make soak MINUTES=30  run the whole loop under load, kills and churn, and see that nothing grows"
	@echo "make check   lint, formatting, types, import direction, dependencies, the wire and the generated pages"
	@echo "make bench   measure against Vowpal Wabbit, scikit-learn, River, LitServe, marisa-trie and an empty gRPC handler"
	@echo "make proto   regenerate the stubs and docs/protocol.md after changing a .proto file"
	@echo "make docs    regenerate docs/commands.md after changing a command or a flag, and build the site: build/site"
	@echo "make screenshots  make every picture in README and docs from real runs; needs Debian's chromium"
	@echo "make lock    write down the exact versions that the image is built with, the newest that pyproject.toml allows"

setup: $(RUNTIME)
	@$(BIN)/ftrie warmup
	@echo "ftrie is installed: $(BIN)/ftrie --help"

torch: $(TORCH)

distributed: $(DISTRIBUTED)

demo: $(RUNTIME)
	@$(BIN)/ftrie demo

live: $(DASHBOARD)
	@$(BIN)/ftrie live

# More processes than cores, since many tests wait for others, the slow ones most of their time; but each process imports for
# some seconds before its first test. CONTRIBUTING.md has the durations.
CORES := $$($(BIN)/python -c 'import os; print(os.cpu_count())')

test: $(TEST)
	@$(BIN)/pytest --numprocesses $$(( $(CORES) + 1 )) -m "not slow"

test-all: $(DEV)
	@$(BIN)/pytest --numprocesses $$(( $(CORES) * 2 ))

MINUTES ?= 30

soak: $(DEV)
	@PYTHONPATH=.:proto $(BIN)/python -m tests.soak --minutes $(MINUTES)

check: lint types imports dependencies wire pages
	@echo "check: all is well"

lint: $(DEV)
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --quiet --check .

types: $(DEV)
	@$(BIN)/mypy --no-error-summary

imports: $(DEV)
	@$(BIN)/lint-imports --no-logo --no-cache

dependencies: $(DEV)
	@$(BIN)/deptry --no-ansi . > .venv/deptry.log 2>&1 || { cat .venv/deptry.log; exit 1; }
	@$(BIN)/python -m pip check --disable-pip-version-check > .venv/pip-check.log 2>&1 || { cat .venv/pip-check.log; exit 1; }

wire: $(DEV)
	@$(BIN)/python proto/generate.py --check
	@cd proto && ../$(BIN)/buf lint && ../$(BIN)/buf breaking --against released.binpb

pages: $(DEV)
	@$(BIN)/python docs/generate.py --check

docs: $(DEV) $(DOCS) $(NODE)
	@$(BIN)/python docs/generate.py
	@$(BIN)/python -m docs.build_site

screenshots: $(DEV) $(DISTRIBUTED)
	@$(BIN)/python docs/screenshots.py

bench: $(BENCH) $(PEERS)
	@$(BIN)/ftrie bench
	@$(BIN)/python -m benchmarks.numbers

proto: $(DEV)
	@$(BIN)/python proto/generate.py

lock: .venv/bin/python
	@$(BIN)/python -m venv --clear .venv/lock
	@.venv/lock/bin/python -m pip install -qq --disable-pip-version-check '.[kafka,otel]'
	@.venv/lock/bin/python -m pip freeze --exclude ftrie > deploy/docker/constraints.txt
	@rm -rf .venv/lock

.venv/bin/python:
	@command -v $(PYTHON) >/dev/null || { \
	  echo "ftrie needs Python 3.11 or newer, and there is no $(PYTHON): install it (Debian: apt install python3 python3-venv)." >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "ftrie needs Python 3.11 or newer, and $(PYTHON) is $$($(PYTHON) -V 2>&1): install one and name it, as in make PYTHON=python3.12." >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo "$(PYTHON) lacks venv or ensurepip: install them (Debian: apt install python3-venv) and run make again." >&2; exit 1; }
	@echo "Making .venv with $$($(PYTHON) -V)"
	@$(PYTHON) -m venv .venv || { rm -rf .venv; exit 1; }

# One stamp for ftrie alone and one for each extra, so that a changed pyproject.toml installs again.
EXTRA = $(patsubst .venv/installed-%,[%],$(@:.venv/installed=))

# --no-compile: of some 9,000 modules few are ever imported, and Python compiles those at their first import (see above).
# The versions of PyTorch and Ray that are tested.
$(TORCH): ALSO = 'torch==2.13.0'
$(DISTRIBUTED): ALSO = 'ray==2.60.0'

# What pytest would do before the first test is done beside that: kernels are compiled, then assertions are rewritten too.
$(TEST): private BESIDE = PYTHONPATH=.:proto $(BIN)/python -m tests.kernels 2>/dev/null &
$(TEST): private AFTER = $(BIN)/pytest --collect-only -qq >/dev/null;
$(TEST): | $(RUNTIME)

$(RUNTIME) $(TEST) $(DEV) $(BENCH) $(PEERS) $(TORCH) $(DISTRIBUTED) $(DOCS) $(DASHBOARD): pyproject.toml | .venv/bin/python
	@echo "Installing ftrie$(EXTRA) into .venv"
	@$(BESIDE) $(BIN)/python -m pip install -qq --no-compile --disable-pip-version-check --editable '.$(EXTRA)' $(ALSO) && touch $@ && { $(AFTER) wait; }

# What a tutorial calls a server with from JavaScript. Without npm its page says that it was not run.
$(NODE): $(DOCS)
	@! command -v npm >/dev/null || npm install --silent --no-audit --no-fund --prefix .venv/node @grpc/grpc-js@1 @grpc/proto-loader@0.8
	@touch $@

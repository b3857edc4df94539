# Everything a developer does, as documented targets: `make help`.
# Each target makes what it needs: a virtual environment in $(VENV), the pinned packages of
# constraints.txt, and the Rust core, rebuilt when a Rust source changed.

VENV ?= .venv
PYTHON ?= python3
PEERS := bench/.venv-peers
PARITY := .venv-parity
PYTHON313 ?= python3.13
RUST := rustcore/Cargo.toml
RUST_SOURCES := $(shell find rustcore -name '*.rs' -not -path '*/target/*') \
	rustcore/Cargo.lock $(wildcard rustcore/Cargo.toml rustcore/*/Cargo.toml)
PY := $(VENV)/bin/python
# Without a bound the models had not ended after seven minutes; with four they take five seconds.
LOOM_MAX_PREEMPTIONS ?= 4
ROUNDS ?= 1000
SEED ?=
STALL ?= 60
CODE := service clients tests examples bench

export PIP_CONSTRAINT := $(abspath constraints.txt)
export PIP_DISABLE_PIP_VERSION_CHECK := 1
say = @printf '\033[1m== %s\033[0m\n'

.DEFAULT_GOAL := help
.PHONY: help build demo test test-rust soak parity lint format bench docs-check clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 14

build: $(VENV)/.core ## make the environment, build the Rust core, install both distributions for editing

demo: build ## train on real digits through the service, with a second consumer beside
	$(say) "demo: a sidecar, a trainer and a second consumer (examples/digits/train.py)"
	@$(PY) examples/digits/train.py

test: build test-rust ## all tests: Rust with loom, then Python on asyncio and uvloop
	$(say) "test: pytest, every async test on asyncio and uvloop"
	@$(PY) -m pytest -q

test-rust: $(VENV)/.tools ## the engine's tests, its doctests, and the loom models
	$(say) "test-rust: engine tests"
	@if cargo nextest --version >/dev/null 2>&1; \
		then cargo nextest run --manifest-path $(RUST) -p tundish-engine --locked; \
		else cargo test --manifest-path $(RUST) -p tundish-engine --locked --lib --tests; fi
	@cargo test --manifest-path $(RUST) -p tundish-engine --locked --doc -q
	$(say) "test-rust: loom models of the window, up to $(LOOM_MAX_PREEMPTIONS) preemptions"
	@LOOM_MAX_PREEMPTIONS=$(LOOM_MAX_PREEMPTIONS) RUSTFLAGS="--cfg loom" CARGO_TARGET_DIR=rustcore/target/loom \
		cargo test --manifest-path $(RUST) -p tundish-engine --locked --test loom --release -q

soak: build ## rounds of consumers that come, lag, leave and are killed; SEED=, ROUNDS=, STALL=
	$(say) "soak: $(ROUNDS) rounds; any of them can be repeated alone by its seed"
	@PYTHONPATH=tests $(PY) -m soak --rounds $(ROUNDS) --stall $(STALL) $(if $(SEED),--seed $(SEED))

parity: build $(PARITY)/.installed ## the same options give the same batches as PyTorch and dataloader-rs
	$(say) "parity: Tundish beside PyTorch and dataloader-rs, in one process"
	@$(PARITY)/bin/python -m pytest -q tests/parity

lint: build ## ruff, mypy --strict, rustfmt and clippy; any warning fails
	$(say) "lint: mypy"
	@$(VENV)/bin/mypy
	$(say) "lint: ruff"
	@$(VENV)/bin/ruff check $(CODE)
	@$(VENV)/bin/ruff format --check $(CODE)
	$(say) "lint: rustfmt and clippy"
	@cargo fmt --manifest-path $(RUST) --all --check
	@cargo clippy --manifest-path $(RUST) --workspace --all-targets --locked -q -- -D warnings
	$(say) "lint: the core compiles for a free-threaded CPython too"
	@PYO3_CONFIG_FILE=$(abspath rustcore/pyext/free-threaded.cfg) CARGO_TARGET_DIR=rustcore/target/free-threaded \
		cargo check --manifest-path $(RUST) -p tundish-pyext --locked -q

format: build ## rewrite sources with ruff and rustfmt
	$(say) "format: ruff and rustfmt"
	@$(VENV)/bin/ruff format $(CODE)
	@$(VENV)/bin/ruff check --fix -q $(CODE)
	@cargo fmt --manifest-path $(RUST) --all

bench: build $(PEERS)/.installed ## compare with a bare loop, PyTorch, dataloader-rs, tensorsocket
	$(say) "bench: sides interleaved in one run; JSON in bench/results/"
	@$(PY) bench/run.py

docs-check: build ## run every block of README.md; check links and examples in the docs
	$(say) "docs-check: README blocks, links, versions"
	@$(PY) -m pytest -q tests/api

clean: ## remove what was built, environments included
	$(say) "clean: environments, build outputs, caches"
	@rm -rf $(VENV) $(PARITY) bench/.venv-peers bench/.venv-dlrs bench/results rustcore/target dist build
	@rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis service/tundish/*.so
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Made on the way; not targets to type.

$(VENV)/.tools: Makefile
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || \
		{ echo "Missing: Python 3.11 or newer. $(PYTHON) is not; try make PYTHON=python3.12"; exit 1; }
	@command -v cargo >/dev/null || \
		{ echo "Missing: cargo, for the Rust core. Install Rust 1.95 or newer with rustup."; exit 1; }
	@command -v cc >/dev/null || \
		{ echo "Missing: a C compiler, which Rust links with. Install gcc or clang."; exit 1; }
	@mkdir -p $(@D) && touch $@

$(VENV)/.deps: constraints.txt pyproject.toml clients/pyproject.toml | $(VENV)/.tools
	$(say) "build: environment in $(VENV) with the versions of constraints.txt"
	@test -x $(PY) || $(PYTHON) -m venv $(VENV)
	@$(PY) -m pip install -q maturin hatchling editables
	@$(PY) -m pip install -q --no-build-isolation -e clients
	@touch $@

$(VENV)/.core: $(VENV)/.deps $(RUST_SOURCES)
	$(say) "build: Rust core, release (a minute or two the first time)"
	@VIRTUAL_ENV=$(abspath $(VENV)) PIP_QUIET=1 $(VENV)/bin/maturin develop --release --locked --extras dev -q
	@touch $@

$(PARITY)/.installed: tests/parity/requirements.txt tests/parity/install.sh constraints.txt
	$(say) "parity: environment in $(PARITY) (PyTorch is a large download, once)"
	@tests/parity/install.sh $(PYTHON313) $(PARITY)
	@touch $@

$(PEERS)/.installed: bench/peers.txt
	$(say) "bench: peers in $(PEERS) (PyTorch is a large download, once)"
	@PIP_CONSTRAINT= bench/install_peers.sh
	@touch $@

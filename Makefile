# Thinwire: the few commands a person needs. `make help` lists them.
#
# demo, test, guest, bench and lab need root, for network namespaces and loop devices; they say so, clean up
# after themselves (also when interrupted) and may be run any number of times.

CARGO ?= cargo
SHELL := /bin/bash
.DEFAULT_GOAL := help

.PHONY: help build build-lab set-up demo test e2e e2e-matrix guest soak soak-volumes lint fuzz fuzz-list mutants bench lab lab-full lab-orchestra lab-orchestra-full clean

help: ## List the commands
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-18s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

build: ## Build the release binary, target/release/thinwire
	$(CARGO) build --release --locked -p thinwire

build-lab: build ## Build that and the laboratory, target/release/thinwire-lab
	$(CARGO) build --release --locked -p thinwire-lab

demo: ## Show the main job on this machine: a disk across a switch, survives kill -9; a mirror of two (root, 2 minutes)
	@scripts/demo.sh

test: ## Set up and run all tests; ends with "N passed, N failed" (root)
	@scripts/test.sh

e2e: build-lab set-up ## Run the end-to-end tests alone; E2E="name ..." selects some (root)
	@/usr/bin/python3 tests/e2e/run.py $(E2E)

e2e-matrix: build-lab set-up ## Run them under every pipeline, policy, link and protection (root, 30 minutes)
	@/usr/bin/python3 tests/e2e/matrix.py

guest: build ## Linux guests that use disks of ours: aoe.ko, iPXE, swap, root; GUEST="name ..." selects some (root, 45 minutes)
	@scripts/setup.sh --guest
	@/usr/bin/python3 tests/guest/run.py --must $(GUEST)

soak: build ## Murder under verified load; SOAK_MINUTES=10 SOAK_SEED= SOAK_ONLY=kill-target SOAK_KILLS=1000 (root)
	@scripts/setup.sh --soak
	@/usr/bin/python3 tests/e2e/soak

soak-volumes: ## What volumes must show and make test has no time for; PART="seeds enumerate legs snapshots cuts" (root, 14 GB, 40 minutes)
	$(CARGO) build --release --locked -p thinwire -p thinwire-sim --bins
	@scripts/setup.sh --soak
	@/usr/bin/python3 tests/e2e/soak_volumes.py $(PART)

set-up: # What e2e and e2e-matrix need
	@scripts/setup.sh --test

lint: ## Formatting, clippy, arrows between crates, links: all that is fast
	@scripts/tidy
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings

mutants: ## Plant the faults of tests/mutants.toml, each in turn; each must be found (1 hour; goes on where it stopped)
	@scripts/mutants

fuzz: ## Run the fuzz targets for FUZZ_SECONDS each (600); FUZZ="name ..." selects some
	@scripts/fuzz $(FUZZ)

fuzz-list: ## List them
	@scripts/fuzz --list

bench: ## Measure beside nbdkit in one run and write docs/performance.md (root, 8 minutes)
	@scripts/bench.sh

lab: ## Tables, figures, peers, limits: the quick form, target/lab/report.html (root, 10 minutes)
	@scripts/lab.sh --quick

lab-full: ## The same with all points; may be interrupted and started again (root, 2.5 hours)
	@scripts/lab.sh

lab-orchestra: ## Volumes made of volumes, storage nodes: the quick form, target/lab/orchestra.html (root, 15 minutes)
	@scripts/lab.sh --orchestra --quick

lab-orchestra-full: ## The same with all points; may be interrupted and started again (root, 2 hours)
	@scripts/lab.sh --orchestra

clean: ## Remove what was built and what the demo left
	$(CARGO) clean
	rm -rf .demo

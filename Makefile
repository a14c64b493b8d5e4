# SPDX-License-Identifier: GPL-2.0-only
.DEFAULT_GOAL := help
PYTHON := .venv/bin/python
PYTEST := $(PYTHON) -m pytest
RESULTS := build/results
MINUTES := 20
SEED := 1
ARGS :=
KERNEL := stable

.PHONY: help setup setup-bench test test-unit test-bpf test-net test-package lint format docs man demo bench bench-quick bench-transport bench-paper soak wheel deb sbom lock check-vm check-readme clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## install everything needed and make .venv (as root; quick when done already)
	@scripts/setup.sh

setup-bench: ## as setup, and what the comparison's training traffic needs: torch, Open MPI (as root)
	@scripts/setup.sh bench

test: test-unit test-bpf test-net test-package ## run all tests (as root)

test-unit: setup ## run the pure tests
	$(PYTEST) tests/unit -n auto --junitxml=$(RESULTS)/unit.xml

test-bpf: setup ## run the BPF programs on golden packets (as root)
	$(PYTEST) tests/bpf --junitxml=$(RESULTS)/bpf.xml

# One at a time: labs share two cores and what they measure depends on them.
test-net: setup ## run labs of namespaces (as root)
	$(PYTEST) tests/net --junitxml=$(RESULTS)/net.xml

test-package: setup ## build the package, install it into a copy of this machine (as root)
	$(PYTEST) tests/package --junitxml=$(RESULTS)/package.xml

lint: setup ## check style and types
	$(PYTHON) -m ruff check .
	$(PYTHON) -m ruff format --check .
	$(PYTHON) -m mypy --strict mrcd cli vm

format: setup ## format the Python sources
	$(PYTHON) -m ruff format .

docs: setup ## write docs/api.md and its schema from the code
	$(PYTHON) -m scripts.apidoc

man: setup ## write the manual pages to build/man
	$(PYTHON) -m scripts.manpages build/man

demo: setup ## kill a plane under load: mrcd, ECMP and MPTCP side by side (as root)
	$(PYTHON) -m tests.bench.demo

# Pieces: make bench ARGS="--add --only faults"; see docs/comparison.md.
bench: setup-bench ## mrcd beside the alternatives, and its targets, as one report in build/compare (as root)
	$(PYTHON) -m tests.bench.compare $(ARGS)

bench-quick: setup-bench ## the same within 5 minutes, once each, less of it, in build/compare-quick (as root)
	$(PYTHON) -m tests.bench.compare --quick --report build/compare-quick/report.md $(ARGS)

bench-transport: setup ## goodput, deaths, loss, order, rsync, speed: what the README quotes (as root)
	$(PYTHON) -m tests.bench.run

bench-paper: setup ## the paper's experiments beside what was published, fail-over times, probing (as root)
	$(PYTHON) -m tests.bench.paper
	$(PYTHON) -m tests.bench.failover
	$(PYTHON) -m tests.bench.probing

soak: setup ## random faults for MINUTES=20 with checked traffic; SEED=1 chooses them (as root)
	$(PYTHON) -m tests.bench.soak --minutes $(MINUTES) --seed $(SEED)

wheel: setup ## build dist/mrcd-VERSION-py3-none-any.whl, the BPF sources inside
	packaging/build.sh wheel

deb: setup ## build dist/mrcd_VERSION_amd64.deb for Debian 12
	packaging/build.sh deb

sbom: deb ## list what the package carries and depends on, as CycloneDX, in dist/
	$(PYTHON) packaging/sbom.py

lock: setup ## choose anew what the package carries of PyPI, by version and hash
	$(PYTHON) packaging/lock.py

check-vm: setup deb ## the package on virtual machines; KERNEL=backports: a newer kernel (as root)
	$(PYTHON) -m vm.check --kernel $(KERNEL) $(ARGS)

check-readme: setup deb ## what README.md says of two hosts, typed on virtual machines (as root)
	$(PYTHON) -m vm.check --readme --kernel $(KERNEL)

clean: ## remove .venv and everything built
	rm -rf .venv build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# SPDX-License-Identifier: GPL-2.0-only
.DEFAULT_GOAL := help
PYTHON := .venv/bin/python
PYTEST := $(PYTHON) -m pytest
RESULTS := build/results
MINUTES := 20
SEED := 1
ARGS :=
NIC :=
KERNELS :=
PYTHONS :=
RELEASE := bookworm
REPO := dist/apt
KEY :=
ARCH := $(shell dpkg --print-architecture 2>/dev/null || echo amd64)

# Tests start daemons and commands hundreds of times: each would compile its Python modules anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup setup-bench test test-unit test-bpf test-net test-net-alone test-net-beside test-package lint format docs man demo bench bench-quick bench-transport bench-paper soak wheel deb image sbom release apt-repo lock audit fuzz check-vm check-readme check-verifier check-python check-arm clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## install all that is needed and make .venv (as root; quick if done already)
	@scripts/setup.sh

setup-bench: ## run setup, and install the applications that are measured: torch, Open MPI, PostgreSQL, ... (as root)
	@scripts/setup.sh bench

test: test-unit test-bpf test-net test-package ## run all tests (as root)

test-unit: setup ## run the unit tests
	$(PYTEST) tests/unit bench/tests -n auto --junitxml=$(RESULTS)/unit.xml

test-bpf: setup ## test the BPF programs with golden packets (as root)
	$(PYTEST) tests/bpf -n 2 --dist loadfile --junitxml=$(RESULTS)/bpf.xml

# All labs share the machine's cores. What measures time or load runs one at a time, the rest three at
# a time; a test that fails beside another one is judged by a run on its own, and named as such.
# .ci/run fails if there are more than two of them.
test-net: test-net-alone test-net-beside ## test in labs of network namespaces (as root)

test-net-alone: setup ## run the tests that measure time or load, one at a time (as root)
	$(PYTEST) tests/net -m alone --junitxml=$(RESULTS)/net-alone.xml

test-net-beside: setup ## run the other tests in labs, three at a time (as root)
	$(PYTEST) tests/net -m "not alone" -n 3 --dist loadfile --junitxml=$(RESULTS)/net.xml || \
	{ test $$? -eq 1 && $(PYTEST) tests/net -m "not alone" --last-failed --last-failed-no-failures none \
		--junitxml=$(RESULTS)/net-again.xml; }

test-package: setup ## build the package and test it in a copy of this machine (as root)
	$(PYTEST) tests/package -n 2 --dist loadfile --no-loadscope-reorder --junitxml=$(RESULTS)/package.xml

lint: setup ## check style and types
	$(PYTHON) -m ruff check .
	$(PYTHON) -m ruff format --check .
	$(PYTHON) -m mypy --strict mrcd cli vm

format: setup ## format the Python sources
	$(PYTHON) -m ruff format .

docs: setup ## write docs/api.md, the API's schema, and tables of the reference and of platforms
	$(PYTHON) -m scripts.apidoc
	$(PYTHON) -m scripts.configdoc
	$(PYTHON) -m scripts.platforms

man: setup ## write the manual pages to build/man
	$(PYTHON) -m scripts.manpages build/man

demo: setup ## kill a plane under load; compare mrcd, ECMP and MPTCP (as root)
	$(PYTHON) -m bench.demo

# To run a part: make bench ARGS="--add --only faults"; see docs/comparison.md.
bench: setup-bench ## compare mrcd with its alternatives and targets; report in build/compare (as root)
	$(PYTHON) -m bench.compare $(ARGS)

bench-quick: setup-bench ## run a smaller bench in 5 minutes; report in build/compare-quick (as root)
	$(PYTHON) -m bench.compare --quick --report build/compare-quick/report.md $(ARGS)

bench-transport: setup ## measure goodput, deaths, loss, order, rsync and speed (as root)
	$(PYTHON) -m bench.transport

bench-paper: setup ## repeat the paper's experiments; measure fail-over and probing (as root)
	$(PYTHON) -m bench.paper
	$(PYTHON) -m bench.faults.failover
	$(PYTHON) -m bench.scale.probing

soak: setup ## inject random faults for MINUTES=20 under checked traffic; SEED=1, ARGS=--mix (as root)
	$(PYTHON) -m bench.soak --minutes $(MINUTES) --seed $(SEED) $(ARGS)

wheel: setup ## build dist/mrcd-VERSION-py3-none-any.whl, with the BPF sources
	packaging/build.sh wheel

deb: setup ## build dist/mrcd_VERSION_ARCH.deb for Debian 12 and 13; ARCH=arm64, or ARCH="amd64 arm64"
	packaging/build.sh deb $(ARCH)

image: deb ## build the container image mrcd:VERSION with podman; BASE, REGISTRY: see packaging/image.sh (as root)
	packaging/image.sh $(ARGS)

sbom: deb ## list the package's contents and dependencies as CycloneDX in dist/
	$(PYTHON) packaging/sbom.py $(ARCH)

release: setup ## build a release twice, compare, list it in dist/; TAG=1 makes the tag, KEY=ID signs
	$(PYTHON) -m scripts.release build $(if $(TAG),--tag) $(if $(KEY),--key "$(KEY)") $(if $(REHEARSE),--rehearse)

apt-repo: ## publish dist/mrcd_*.deb in the apt repository REPO=dist/apt, signed; KEY=ID names the key
	KEY="$(KEY)" packaging/repository.sh "$(REPO)"

lock: setup ## update the versions and hashes of the PyPI packages in the package
	$(PYTHON) packaging/lock.py

audit: setup ## look for known vulnerabilities of what is carried and used; exit 2 if nobody can be asked
	$(PYTHON) -m scripts.audit

fuzz: ## fuzz what strangers can send for MINUTES=20; ARGS="--keep TARGET..." (as root)
	@scripts/setup.sh fuzz
	$(PYTHON) -m tests.fuzz --minutes $(MINUTES) $(ARGS)

check-vm: setup deb ## check the package on virtual machines; RELEASE=trixie is Debian 13, NIC=e1000e that model (as root)
	$(PYTHON) -m vm.check --release $(RELEASE) $(if $(NIC),--plane-nics --nic $(NIC)) $(ARGS)

check-readme: setup deb ## type docs/quickstart.md on virtual machines (as root)
	$(PYTHON) -m vm.check --readme --release $(RELEASE)

check-verifier: setup ## give all programs to the verifiers of KERNELS="running bookworm trixie trixie-backports" (as root)
	$(PYTHON) -m vm.verifier $(ARGS) $(KERNELS)

check-python: setup ## run the unit tests with other interpreters: PYTHONS="3.12 3.13", those that are installed
	$(PYTHON) -m vm.pythons $(ARGS) $(PYTHONS)

check-arm: setup ## connect two hosts on an emulated arm64 machine, with that package (as root)
	packaging/build.sh deb arm64
	$(PYTHON) -m vm.arm64 $(ARGS)

clean: ## remove .venv and everything built
	rm -rf .venv build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Set-up, checks and tests. `make run` and `make test` need Python >= 3.11, pip, make and a C compiler, nothing else.
#
# Stamps in the virtual environment remember what is installed, so a second call starts at once.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
# What tests need beside Python, as program-or-path:Debian-package (tests/conftest.py has the laboratory's part as well).
NEEDED := chromium:chromium ip:iproute2 slurmctld:slurmctld slurmd:slurmd srun:slurm-client munged:munge \
	mpirun.openmpi:openmpi-bin mpirun.mpich:mpich numactl:numactl hwloc-ls:hwloc-nox \
	sge_qmaster:gridengine-master sge_execd:gridengine-exec qsub:gridengine-client \
	/usr/share/datasets/fashion-mnist:dataset-fashion-mnist
POLICY := /usr/sbin/policy-rc.d
# What needs a browser, a root's network namespaces, a GPU or an hour is not a unit test.
UNITS := not browser and not lab and not gpu and not soak

# How many tests run beside each other; those that need a quiet machine follow, one by one.
WORKERS ?= 2

.DELETE_ON_ERROR:
.PHONY: run test check lint types contracts units soak system-packages clean

run: $(VENV)/.topout
	$(BIN)/topout run

test: $(VENV)/.dev system-packages lint types contracts
	$(BIN)/python -m tests.everything $(WORKERS)

check: $(VENV)/.dev lint types contracts units

soak: $(VENV)/.dev system-packages
	$(BIN)/python -m pytest --soak -m soak --timeout 7200 -rP

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.dev
	$(BIN)/mypy

contracts: $(VENV)/.dev
	$(BIN)/lint-imports

units: $(VENV)/.dev
	$(BIN)/python -m pytest -m "$(UNITS)"

# A Debian Python may come without ensurepip; its pip can then install one into the environment from outside.
# Commands that a pip before 25.2 writes load `re`, which takes 8 ms at every start; they work all the same.
$(VENV)/.python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "topout needs Python 3.11 or newer; $(PYTHON) is older. Try: make PYTHON=python3.12 run" >&2; exit 3; }
	$(PYTHON) -m venv $(VENV) || \
		{ $(PYTHON) -m venv --clear --without-pip $(VENV) && $(PYTHON) -m pip --python $(BIN)/python install pip; }
	$(PIP) install --quiet 'pip>=25.2' || true
	@touch $@

# torch goes first and alone: a later pip command finds it installed and takes no other build as a dependency's dependency.
$(VENV)/.torch: $(VENV)/.python constraints.txt
	$(PIP) install "$$(grep '^torch==' constraints.txt)"
	@touch $@

$(VENV)/.topout: $(VENV)/.torch pyproject.toml
	$(PIP) install --quiet --constraint constraints.txt --editable '.[torch]'
	@touch $@

$(VENV)/.dev: $(VENV)/.topout
	$(PIP) install --quiet --constraint constraints.txt --editable '.[torch,formats,remote,dev]'
	# without its dependencies, which would put the full tensorflow over tensorflow-cpu
	$(PIP) install --quiet --no-deps --constraint constraints.txt tf_keras
	@touch $@

# Debian starts the services of what it installs, unless policy-rc.d forbids it; the tests start their own.
system-packages:
	@missing=; PATH="$$PATH:/usr/sbin:/sbin"; \
	for pair in $(NEEDED); do \
		command -v "$${pair%%:*}" >/dev/null || [ -e "$${pair%%:*}" ] || missing="$$missing $${pair##*:}"; \
	done; \
	if [ -z "$$missing" ]; then exit 0; fi; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		if [ ! -e $(POLICY) ]; then \
			trap 'rm -f $(POLICY)' EXIT; \
			printf '#!/bin/sh\nexit 101\n' >$(POLICY) && chmod +x $(POLICY); \
		fi; \
		export DEBIAN_FRONTEND=noninteractive; \
		apt-get update -q && apt-get install -q -y --no-install-recommends $$missing && exit 0; \
		why="apt-get could not install them"; \
	else \
		why="installing them needs root on Debian"; \
	fi; \
	echo "Not installed:$$missing ($$why)." >&2; \
	echo "Tests marked browser need chromium, some of train the data set, tests marked lab need all others; they are skipped and listed." >&2

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

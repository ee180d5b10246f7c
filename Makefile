# Two commands: `make reproduce` and `make test`. Each makes the environment it needs and is safe to repeat.
# Every target has a plain form in README.md for those without make.

VENV ?= .venv
# 3.11 first: the pinned set was tested with it.
PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3; do command -v $$p >/dev/null 2>&1 && $$p -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' 2>/dev/null && echo $$p && break; done)
RUN := $(VENV)/bin/python

# Before anything imports torch: spinning OpenMP threads make a training step take seconds where a core is shared.
export OMP_WAIT_POLICY ?= PASSIVE
export OMP_NUM_THREADS ?= $(shell n=$$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2); echo $$(( n > 1 ? n / 2 : 1 )))
export PIP_DISABLE_PIP_VERSION_CHECK = 1
# Read by recipes as "$$REPO", so that the shell never sees it as code.
export REPO

.PHONY: help reproduce test lab notebooks badges bench setup clean

help:
	@echo "make reproduce   run every lab at profile quick, offline, and write a report"
	@echo "make test        the whole test suite"
	@echo "make setup       only make .venv and install the pinned set"
	@echo "make lab         JupyterLab, opened on notebook 00"
	@echo "make notebooks   build the notebooks from notebooks/src and refresh their outputs"
	@echo "make bench       benchmarks, as ratios measured in one run"
	@echo "make badges REPO=owner/name   write the public address into README and notebooks"

setup: $(VENV)/.installed

# The stamp names what was installed: another requirements.txt installs again, the same one does not.
$(VENV)/.installed: requirements.txt pyproject.toml
	@"$(PYTHON)" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' 2>/dev/null || { echo "labkit needs Python 3.11, 3.12 or 3.13; none was found (or name one: make PYTHON=/path/to/python3.11)"; exit 2; }
	@$(RUN) -c '' 2>/dev/null || $(PYTHON) -m venv $(VENV)
	$(RUN) -m pip install --quiet -r requirements.txt
	$(RUN) -m pip install --quiet --no-deps -e .
	@touch $@

reproduce: setup
	$(RUN) -m labkit reproduce --profile quick

# timm asks for torchvision, which breaks Lightning beside a torch that it was not built for: so it comes without.
test: setup
	@$(RUN) -m pip install --quiet --no-deps timm==1.0.31 || echo "timm cannot be had: comparisons with it are skipped"
	$(RUN) -m pytest

lab: setup
	$(VENV)/bin/jupyter lab notebooks/00_start_here.ipynb

notebooks: setup
	$(RUN) -m labkit notebooks

bench: setup
	$(RUN) -m labkit bench

badges: setup
	@test -n "$$REPO" || { echo "usage: make badges REPO=owner/name"; exit 2; }
	$(RUN) -m labkit badges "$$REPO"

clean:
	rm -rf $(VENV) build *.egg-info

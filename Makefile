# Everything a newcomer needs: `make lab` runs the whole loop on a laptop, `make test` runs the tests. `make help` lists the rest.

PYTHON ?= $(shell command -v python3.11 || command -v python3.12 || command -v python3)
VENV ?= .venv
BIN := $(VENV)/bin
# setuptools warns at every editable install about what an editable install is.
PIP := PYTHONWARNINGS=ignore $(BIN)/python -m pip install --quiet --disable-pip-version-check
LAB_READY := $(VENV)/.lab-ready
NOTEBOOK_READY := $(VENV)/.notebook-ready
DEV_READY := $(VENV)/.dev-ready
# torch is pinned here and not in the package: a trainer's environment brings its own.
TORCH := $(shell grep '^torch==' constraints.txt)

export OMP_NUM_THREADS ?= 1

.DEFAULT_GOAL := help
.PHONY: help lab test soak faults lint format notebook notebooks bench clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# Checks come before downloads: the first failing one says what is missing.
$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "make: no python3 found; install Python 3.11 or newer, or name one with PYTHON=..." >&2; exit 1; }
	@command -v "$(PYTHON)" >/dev/null || { echo "make: $(PYTHON) cannot be run; name another with PYTHON=..." >&2; exit 1; }
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "make: $(PYTHON) is older than Python 3.11; name a newer one with PYTHON=..." >&2; exit 1; }
	@"$(PYTHON)" -c 'import ensurepip, venv' 2>/dev/null || \
	  { echo "make: $(PYTHON) lacks the venv module (Debian: the python3-venv package)" >&2; exit 1; }
	@echo "make: creating $(VENV) with $$("$(PYTHON)" --version)"
	@"$(PYTHON)" -m venv $(VENV)
	@$(PIP) --upgrade pip

$(LAB_READY): $(BIN)/python pyproject.toml constraints.txt
	@echo "make: installing the package and its embedded stack into $(VENV) (a few minutes the first time)"
	@$(PIP) '$(TORCH)'
	@$(PIP) -c constraints.txt -e '.[lab]'
	@touch $@

$(NOTEBOOK_READY): $(LAB_READY)
	@echo "make: installing JupyterLab into $(VENV)"
	@$(PIP) -c constraints.txt -e '.[lab,notebooks]'
	@touch $@

$(DEV_READY): $(LAB_READY)
	@echo "make: installing the test and lint tools into $(VENV)"
	@$(PIP) -c constraints.txt -e '.[lab,notebooks,wandb,ray,dev]'
	@touch $@ $(NOTEBOOK_READY)

lab: $(LAB_READY)  ## train a tiny policy end to end through the production hook (SEED=0 ROLLOUTS=40)
	@$(BIN)/python -m analysis.cli lab $(if $(SEED),--seed $(SEED)) $(if $(ROLLOUTS),--rollouts $(ROLLOUTS))

test: $(DEV_READY)  ## run the tests (ARGS="-k name" narrows them; SLIME_DIR=checkout adds those inside real Slime)
	@$(BIN)/python -m pytest -m "not slow" $(ARGS)

soak: $(DEV_READY)  ## run the long tests: fifty kills, two hundred fault schedules over sockets, the soak
	@$(BIN)/python -m pytest -m slow $(ARGS)

faults: $(DEV_READY)  ## play the catalogue of fault scenarios and print it as a table
	@$(BIN)/python -m tests.scenarios

lint: $(DEV_READY)  ## ruff, mypy and the import contracts
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

format: $(DEV_READY)  ## rewrite the sources in the house style
	@$(BIN)/ruff check --fix-only --quiet .
	@$(BIN)/ruff format .

notebook: $(NOTEBOOK_READY)  ## open the notebooks in JupyterLab (ARGS="--no-browser --port 8889" for a remote machine)
	@$(BIN)/python -m analysis.cli notebook $(if $(ARGS),-- $(ARGS))

notebooks: $(NOTEBOOK_READY)  ## execute every notebook and write it as a page into build/notebooks
	@$(BIN)/python -m analysis.cli notebook --execute build/notebooks

bench: $(DEV_READY)  ## measure the performance claims, each against a baseline in the same run
	@for file in benchmarks/*.py; do echo "== $$file"; $(BIN)/python $$file || exit 1; done

clean:  ## remove the virtual environment and caches
	@rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis build *.egg-info

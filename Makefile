# Two commands: `make demo` shows what there is, `make test` runs every check that CI runs. Each does its own set-up.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: demo test lint types unit coverage torture format clean

demo: $(STAMP)
	$(BIN)/framecast demo

test: lint types unit

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)
	$(BIN)/mypy

# One thread a worker: two processes with two threads each on two cores are several times slower.
unit: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 --dist worksteal

# The same tests, and which lines of the package they reach in their own process; half as long again.
coverage: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 --dist worksteal --cov=framecast --cov-report=term-missing:skip-covered

# The long form of every campaign of docs/reliability.md: an hour or so, best as root, who can mount small disks.
torture: $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[torture]'
	FRAMECAST_TORTURE=1 OMP_NUM_THREADS=1 $(BIN)/pytest tests/reliability --timeout=3600

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "framecast needs Python 3.11 or newer; run: make PYTHON=python3.11 $(MAKECMDGOALS)"; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo "Python's venv module is missing; run: sudo apt-get install python3-venv"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,lerobot,ray,serve,sim,tensorboard]'
	@touch $@

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache

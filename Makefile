# Everything a newcomer needs: `make demo`, `make test`. Plain pip; see docs/dependencies.md for what is installed.
#   make demo       the main job on four unequal local workers: DDP first, then uneven
#   make test       the tests to run before a commit; ARGS="-n 0 tests/unit" for some of them
#   make test-rest  all other tests (tests/system, benchmarks/tests, and those marked rest): Ray, emulated clusters, benches
#   make test-all   both
#   make check      style and types
#   make types      the types that scripts see: pyright on examples/ and the tutorials
#   make docs       the site, into build/docs; a warning is an error
#   make notebooks  the tutorials, each executed as a notebook, into build/notebooks
#   make bench      the LB-BSP benchmark, short form
#   make gpu        what needs a GPU, tests and bench, within nine minutes; one results file, build/gpu.json
#   make dist       what a release uploads, into dist/: the source, and wheels with and without compiled loops
#   make dist-check the same, each one installed and tried in a fresh environment
#   make clean      remove .venv and everything that was built (run directories stay)

PYTHON ?= python3
BIN := .venv/bin
NEEDS_PYTHON := import sys; sys.exit(sys.version_info < (3, 11) and "uneven needs Python 3.11 or newer, this is " \
	+ sys.version.split()[0] + ": make PYTHON=python3.11 (or newer)")
NEEDS_VENV := import importlib.util as u, sys; sys.exit(u.find_spec("ensurepip") is None and \
	"this Python cannot make a virtual environment: on Debian and Ubuntu, apt-get install python3-venv")
# Writes a dependency group as a requirements file, for pip before 25.1 does not know --group.
GROUPS := import sys, tomllib; groups = tomllib.load(open("pyproject.toml", "rb"))["dependency-groups"]; \
	print(*(need for name in sys.argv[1:] for need in groups[name]), sep="\n")

# pip would compile every file of every package, which takes longer than all the rest of an install. Python keeps the
# bytecode of what it imports by itself, also of this package, unless told not to.
export PYTHONDONTWRITEBYTECODE =
INSTALL := -m pip install --quiet --no-compile --constraint constraints.txt

# The library, and the distribution that brings `uneven bench`.
PROJECTS := pyproject.toml benchmarks/pyproject.toml
OURS := --editable . --editable ./benchmarks

# Compiles what every process of the tests imports, and the tests; else all of them would, at the same time. What goes
# wrong here goes wrong when they are run, too, and is told then.
COMPILE := import torch._dynamo, pytest; pytest.main(["--collect-only", "--quiet"])

# numba keeps what it compiles here; else each table server of the first tests would compile it for five seconds.
LOOPS := import uneven.embedding.loops

# Two pips at once in one folder would be one too many.
.NOTPARALLEL:
.PHONY: .venv demo test test-rest test-all check types docs notebooks bench gpu dist dist-check clean

.venv: .venv/.stamp-installed

.venv/.stamp-made:
	@$(PYTHON) -c '$(NEEDS_PYTHON)'
	@$(PYTHON) -c '$(NEEDS_VENV)'
	$(PYTHON) -m venv .venv
	@touch $@

.venv/.stamp-installed: .venv/.stamp-made $(PROJECTS) constraints.txt
	$(BIN)/python $(INSTALL) $(OURS)
	@touch $@

# The packages together with pytest, for pip takes seconds to begin. It uses one core, so while it fetches the rest, the
# other core compiles.
.venv/.stamp-test: .venv/.stamp-made $(PROJECTS) constraints.txt
	@$(BIN)/python -c '$(GROUPS)' test > .venv/test.txt
	@$(BIN)/python -c '$(GROUPS)' test-with > .venv/test-with.txt
	$(BIN)/python $(INSTALL) $(OURS) --requirement .venv/test.txt
	@touch .venv/.stamp-installed
	@$(BIN)/python -c '$(COMPILE)' > .venv/compiled.txt 2>&1 & \
	$(BIN)/python $(INSTALL) --requirement .venv/test-with.txt && { wait $$! || true; }
	@$(BIN)/python -c '$(LOOPS)' >> .venv/compiled.txt 2>&1 || true
	@touch $@

# Types are checked with what the tests need, too.
.venv/.stamp-check: .venv/.stamp-test
	@$(BIN)/python -c '$(GROUPS)' check > .venv/check.txt
	$(BIN)/python $(INSTALL) --requirement .venv/check.txt
	@touch $@

demo: .venv/.stamp-installed
	$(BIN)/uneven demo $(ARGS)

# One process runs all tests of a file, so a costly fixture is made once. In the order of their folders: short tests last.
PYTEST := $(BIN)/python -m pytest
SYSTEM := tests/system benchmarks/tests
MARKED := tests/ranks tests/unit
SPREAD := --numprocesses auto --dist loadfile --no-loadscope-reorder

test: .venv/.stamp-test
	$(PYTEST) $(SPREAD) -m "not rest" --ignore tests/system $(ARGS)

test-rest: .venv/.stamp-test
	$(PYTEST) $(SPREAD) -m "rest and not alone" $(SYSTEM) $(MARKED) $(ARGS)
	$(PYTEST) -m alone $(SYSTEM) $(ARGS)

test-all: test test-rest

check: .venv/.stamp-check
	$(BIN)/ruff check .
	$(BIN)/mypy

# The pages of the API are written from the installed package.
.venv/.stamp-docs: .venv/.stamp-installed
	@$(BIN)/python -c '$(GROUPS)' docs > .venv/docs.txt
	$(BIN)/python $(INSTALL) --requirement .venv/docs.txt
	@touch $@

# Needs Node.js, and the network on the first call.
types: .venv/.stamp-test
	$(BIN)/python docs/notebooks.py --code
	npx --yes pyright@1.1.405 --pythonpath $(BIN)/python

docs: .venv/.stamp-docs
	$(BIN)/python -m sphinx --builder html --fail-on-warning --keep-going --quiet docs build/docs $(ARGS)
	@echo "the site is in build/docs/index.html"

# The tutorials use what the tests need, too.
.venv/.stamp-notebooks: .venv/.stamp-test
	@$(BIN)/python -c '$(GROUPS)' notebooks > .venv/notebooks.txt
	$(BIN)/python $(INSTALL) --requirement .venv/notebooks.txt
	@touch $@

notebooks: .venv/.stamp-notebooks
	$(BIN)/python docs/notebooks.py $(ARGS)

bench: .venv/.stamp-installed
	$(BIN)/uneven bench lb-bsp --quick $(ARGS)

# Without an install: PYTHONPATH=src:benchmarks/src python -m uneven_bench.gpu.record
gpu: .venv/.stamp-test
	$(BIN)/python -m uneven_bench.gpu.record $(ARGS)

.venv/.stamp-release: .venv/.stamp-made pyproject.toml constraints.txt
	@$(BIN)/python -c '$(GROUPS)' release > .venv/release.txt
	$(BIN)/python $(INSTALL) --requirement .venv/release.txt
	@touch $@

# All wheels are built from the source that is uploaded. pip prefers the wheel with compiled loops where its machine and
# its C library fit; auditwheel finds the oldest C library that fits, and names the wheel after it.
COMPILERS ?= g++ aarch64-linux-gnu-g++
SOURCE = $(wildcard dist/uneven-*.tar.gz)
WHEEL = PATH=$(CURDIR)/$(BIN):$$PATH $(BIN)/python -m pip wheel --quiet --no-deps --no-build-isolation --no-cache-dir \
	--constraint constraints.txt $(SOURCE)

dist: .venv/.stamp-release
	rm -rf dist build/linux
	$(BIN)/python -m hatchling build --target sdist --directory dist
	$(MAKE) --no-print-directory wheels

wheels:
	UNEVEN_NATIVE=0 $(WHEEL) --wheel-dir dist
	for compiler in $(COMPILERS); do CXX=$$compiler $(WHEEL) --wheel-dir build/linux || exit 1; done
	PATH=$(CURDIR)/$(BIN):$$PATH $(BIN)/auditwheel repair --wheel-dir dist build/linux/*.whl
	$(BIN)/twine check --strict dist/*

FRESH := build/fresh/bin/python
AGAIN := $(FRESH) $(INSTALL) --no-deps --force-reinstall

dist-check: dist
	rm -rf build/fresh
	$(PYTHON) -m venv build/fresh
	$(FRESH) $(INSTALL) dist/uneven-*.tar.gz
	$(FRESH) -I .ci/installed.py compiled
	$(AGAIN) dist/uneven-*-none-any.whl
	$(FRESH) -I .ci/installed.py plain
	$(AGAIN) --no-index --find-links dist uneven
	$(FRESH) -I .ci/installed.py compiled

clean:
	rm -rf .venv build dist docs/cli benchmarks/dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find src benchmarks tests examples -name __pycache__ -type d -prune -exec rm -rf {} +

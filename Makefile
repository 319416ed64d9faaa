# Every target makes the environment it needs; `make help` lists them.

PYTHON ?= python3
VENV := .venv
OLDEST := .venv-oldest
NEWEST := .venv-newest
OLD := .venv-old
GPU := .venv-gpu
OLD_COMMIT := 8cfb884
# For `make gpu`; without STAGE all of them, without ROWS all rows. Its time begins here: what makes the environment counts.
DEVICE ?= cuda
SIZE ?= full
STAGE ?=
ROWS ?=
MINUTES ?=
BEGAN := $(shell date +%s)
# For `make wheels`: which CPython, and what goes into the folder besides our own wheel and what these need.
WHEELS := wheels
WHEELS_PYTHON ?= 3.12
WHEELS_MIB := 50
OFFLINE = $(if $(wildcard $(WHEELS)/*.whl),--no-index --find-links $(WHEELS))
WANTED := 'click>=8.1' 'msgspec>=0.19' 'numpy>=1.26' 'pulp>=3.3.1,<4' 'highspy>=1.10,!=1.16.0' 'pytest>=8' 'pytest-xdist>=3.5' \
	'hypothesis>=6.140'
# Where nothing compiled may be kept, every process compiles the library and rewrites the assertions of all tests anew.
export PYTHONDONTWRITEBYTECODE :=
# Each worker has a row of tests as they come, so that what files share is made once; who is done takes half of what another has left.
PARALLEL := -n auto --maxprocesses 4 --dist worksteal
# In a process of its own: the fake device stays in one for good.
ON_DEVICE := -p tests.fake_cuda.plugin --device fake-cuda $(PARALLEL)

.DEFAULT_GOAL := help
.PHONY: help install test test-device planted fuzz sweep check-always bench profiles test-oldest test-newest old lint types format demo notebooks docs picture gpu wheels clean

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

install: $(VENV)/.installed  ## make .venv with all that development needs (again when a requirement changes)

test: install  ## run the tests, on two cores where there are two, then those of test-device
	$(VENV)/bin/python -m pytest $(PARALLEL)
	$(VENV)/bin/python -m pytest $(ON_DEVICE)

test-device: install  ## run the tests marked gpu, and tests/device, on a fake CUDA device (needs a C++ compiler)
	$(VENV)/bin/python -m pytest $(ON_DEVICE)

planted: install  ## plant sixty faults of one line each, one by one, and say which test finds each
	$(VENV)/bin/python -m tests.planted

fuzz: install  ## draw 2,000 models and plans, and compare planned steps with plain ones bit for bit
	$(VENV)/bin/python -m tests.fuzz

bench: install  ## run the benchmarks and write down what they find (takes hours)
	for each in budgets.run budgets.twenty budgets.ragged in_place.run saved_bytes.run overhead.run recording.run solving checks \
		host_cost.run host_cost.units host_cost.before frontier.run seeds; do $(VENV)/bin/python -m benchmarks.$$each || exit 1; done

profiles: install  ## record the profiles of real models again, in fake mode (takes minutes)
	$(VENV)/bin/python -m benchmarks.shipped --all -o profiles

sweep: install  ## run the tests and every row of the long sweeps
	$(VENV)/bin/python -m pytest $(PARALLEL) -m "sweep or not sweep"

check-always: install  ## run the tests with every segment of every plan checked in every step
	$(VENV)/bin/python -m pytest $(PARALLEL) --check-always

demo: install  ## run a small GPT-2 plain and inside half its peak memory, and compare
	$(VENV)/bin/autockpt demo

notebooks: install  ## run the notebooks and write down anew what they show
	$(VENV)/bin/python -m tests.notebooks

docs: $(VENV)/.docs  ## build the documentation into build/docs; warnings are errors
	$(VENV)/bin/python -m sphinx --fail-on-warning --keep-going --quiet --builder html docs build/docs

picture: install  ## draw the picture of the README again, from a recorded profile
	$(VENV)/bin/python docs/picture.py

lint: install  ## check style and formatting
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .

types: install  ## check types
	$(VENV)/bin/mypy

format: install  ## rewrite files in the house style
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

test-oldest: $(OLDEST)/.installed  ## run the tests with the oldest versions that pyproject.toml claims
	$(OLDEST)/bin/python -m pytest $(PARALLEL)
	$(OLDEST)/bin/python -m pytest $(ON_DEVICE)

test-newest: $(NEWEST)/.installed  ## run the tests with the newest versions (PyTorch's build with CUDA: 5.4 GB)
	$(NEWEST)/bin/python -m pytest $(PARALLEL)
	$(NEWEST)/bin/python -m pytest $(ON_DEVICE)

gpu: $(GPU)/.installed  ## first contact with a GPU, in stages: STAGE=1 for one; DEVICE=fake-cuda SIZE=tiny for a try without one
	$(GPU)/bin/python -m benchmarks.gpu --device $(DEVICE) --size $(SIZE) --since $(BEGAN) $(addprefix --stage ,$(STAGE)) \
		$(if $(ROWS),--rows '$(ROWS)') $(addprefix --minutes ,$(MINUTES))

wheels:  ## collect in wheels/ what `make gpu` installs where there is no network
	rm -rf $(WHEELS) build/lib
	$(PYTHON) -m pip download --quiet --dest $(WHEELS) --constraint constraints.txt --only-binary=:all: \
		--implementation cp --python-version $(WHEELS_PYTHON) \
		$(foreach each,manylinux_2_28 manylinux_2_27 manylinux_2_24 manylinux_2_17 manylinux2014,--platform $(each)_x86_64) $(WANTED)
	$(PYTHON) -m pip wheel --quiet --no-deps --wheel-dir $(WHEELS) .
	@$(PYTHON) -c "import pathlib, sys; size = sum(p.stat().st_size for p in pathlib.Path('$(WHEELS)').iterdir()) / 2**20; \
		print(f'$(WHEELS): {size:.1f} MiB'); sys.exit(size > $(WHEELS_MIB) and '$(WHEELS): more than $(WHEELS_MIB) MiB')"

old: $(OLD)/.installed  ## make .venv-old: the version that others are compared with, over the same libraries

clean:  ## remove environments, builds and caches
	rm -rf $(VENV) $(OLDEST) $(NEWEST) $(OLD) $(GPU) $(WHEELS) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# $(call make-venv,FOLDER,CONSTRAINTS)
define make-venv
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "autockpt needs Python 3.10 or newer; choose one with PYTHON=python3.12")'
	$(PYTHON) -m venv $(1)
	$(1)/bin/python -m pip install --constraint $(2) --editable '.[dev]'
	@touch $(1)/.installed
endef

$(VENV)/.installed: pyproject.toml constraints.txt
	$(call make-venv,$(VENV),constraints.txt)

$(VENV)/.docs: $(VENV)/.installed
	$(VENV)/bin/python -m pip install --constraint constraints.txt --editable '.[docs]'
	@touch $(VENV)/.docs

$(OLDEST)/.installed: pyproject.toml constraints-oldest.txt
	$(call make-venv,$(OLDEST),constraints-oldest.txt)

$(NEWEST)/.installed: pyproject.toml constraints-newest.txt
	$(call make-venv,$(NEWEST),constraints-newest.txt)

# Over what $(PYTHON) has, also where that is an environment itself, which venv would pass over. pip is not told of torch, so
# that it stays, whatever pip would say of what torch itself needs.
$(GPU)/.installed: pyproject.toml $(wildcard $(WHEELS)/*.whl)
	rm -rf $(GPU) && $(PYTHON) -m venv --without-pip --system-site-packages $(GPU)
	$(PYTHON) -c 'import site; print(*site.getsitepackages(), sep="\n")' \
		> "$$($(GPU)/bin/python -c 'import site; print(site.getsitepackages()[0])')/libraries.pth"
	$(PYTHON) -m pip --python $(GPU)/bin/python install --quiet --no-compile $(OFFLINE) $(WANTED) \
		$(if $(OFFLINE),,'transformers>=5')
	$(PYTHON) -m pip --python $(GPU)/bin/python install --quiet --no-deps $(if $(OFFLINE),$(OFFLINE) autockpt,--editable .)
	@touch $(GPU)/.installed

# Its own autockpt comes first on the path, then all that .venv holds; .venv's editable autockpt stays out, since Python
# reads no .pth file of a folder that a .pth file names.
$(OLD)/.installed: $(VENV)/.installed
	rm -rf $(OLD) && $(PYTHON) -m venv --without-pip $(OLD)
	mkdir $(OLD)/source && git archive $(OLD_COMMIT) | tar -x -C $(OLD)/source
	$(VENV)/bin/python -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir $(OLD) $(OLD)/source
	$(VENV)/bin/python -m pip --python $(OLD)/bin/python install --quiet --no-deps --ignore-installed $(OLD)/autockpt-*.whl
	$(VENV)/bin/python -c 'import site; print(site.getsitepackages()[0])' \
		> "$$($(OLD)/bin/python -c 'import site; print(site.getsitepackages()[0])')/libraries.pth"
	rm -rf $(OLD)/source && touch $(OLD)/.installed

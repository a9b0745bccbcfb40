# Everything runs in a virtual environment of its own, made on first use.
# Needed on the machine: make, and Python 3.11 or newer.
#
#   make demo         the main job on a 16-layer Llama
#   make test         lint, types and all tests but the slow ones
#   make test-all     the slow ones too
#   make test-bits    those that compare with eager, under settings that choose other kernels
#   make test-gpu     what only a GPU can show; OUT= says where it is written
#   make test-backends  the compilers of other projects beside eager, in an environment of its own
#   make test-peers   torch's own test files with foretrace in torch's place, against a list
#   make reliability  torch's test databases by every route; writes RELIABILITY.md
#   make bench        capture times and saved bytes, side by side with torch's own tools
#
# Of use now and then: PYTHON=python3.12, JOBS=8 (workers), SAMPLES=4 (of each operator, for
# reliability), EVERY=1 (for test-bits: all of the quick tests, not one in four), TORCH=2.15.0
# (another torch, in an environment of its own; types are checked with the torch of
# requirements.txt alone), TORCH_INDEX= (only pip's own indexes). A Python that this machine does
# not have: python -m tools.environment --python 3.14 --torch 2.15.0 --quick

SHELL       := /bin/bash
TORCH       ?=
VENV        := .venv$(addprefix -,$(TORCH))
READY       := $(VENV)/.ready
BIN         := $(VENV)/bin
PIP         := $(BIN)/python -m pip --disable-pip-version-check
JOBS        ?= 2
SAMPLES     ?= all
EVERY       ?= 4
RECORDS      = out/$(shell git rev-parse --short HEAD)-$(SAMPLES)
DATABASES    = OMP_NUM_THREADS=1 $(BIN)/python -m tests.databases --samples $(SAMPLES) --jobs $(JOBS)
# Every process that a test starts would compile the package anew, were no bytecode written.
PYTEST       = PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(JOBS) --dist worksteal
# Through Dynamo and by torch's own entry points, which take ten times as long.
BESIDE       = --route dynamo --beside-torch $(addprefix --database ,opinfo.float32 module.train \
  autograd_function custom_op export_db)
# On a machine with a GPU: its own Python, if torch finds the GPU there, and packages carried along.
OUT         ?= out/gpu
HAS_GPU     := import sys, torch; sys.exit(not torch.cuda.is_available())
# The index of CPU builds, asked for torch alone. Out of reach, pip says so and uses its own.
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu
NEW_ENOUGH  := import sys; sys.exit(sys.version_info < (3, 11))
PYTHON      ?= $(shell for p in python3.11 python3; do $$p -c '$(NEW_ENOUGH)' 2>/dev/null && echo $$p && break; done)

.PHONY: demo test test-all test-bits test-gpu test-backends bars test-peers reliability bench lint types clean

demo: $(READY)
	$(BIN)/python examples/demo.py

test: lint $(if $(TORCH),,types)
	$(PYTEST) -m "not slow"

test-all: lint $(if $(TORCH),,types)
	$(PYTEST)

# BITS= names settings by a part of them: make test-bits BITS="AVX2 OMP_NUM_THREADS".
test-bits: $(READY)
	$(BIN)/python -m tools.bits --every $(EVERY) $(if $(BITS),--only $(BITS))

# Without a GPU, each part is skipped by name. See tests/gpu/README.md.
test-gpu:
	@if python3 -c '$(HAS_GPU)' 2>/dev/null; then python=python3; \
	  else $(MAKE) --no-print-directory $(READY) && python=$(BIN)/python || exit 1; fi; \
	  PYTHONPATH=".:out/site:$$PYTHONPATH" $$python -m tests.gpu --out $(OUT)

# With the packages of the extras, some 1.5 GB beside torch. BACKEND= and ONLY= name some:
# make test-backends BACKEND=iree ONLY=llama
test-backends:
	$(MAKE) --no-print-directory VENV=.venv-backends bars

bars: $(READY)
	$(PIP) install --quiet --no-build-isolation -e '.[iree,onnx,openvino,executorch,tvm]'
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.backends $(addprefix --backend ,$(BACKEND)) \
	  $(addprefix --only ,$(ONLY))
	$(BIN)/python -m pytest -q tests/house/test_docs.py -k 'test_python and README'

# Fetches the files once. ONLY= names some: make test-peers ONLY=dynamo/test_hooks.
test-peers: $(READY)
	$(PIP) install --quiet --no-build-isolation -e '.[peers]'
	bash tests/peers/fetch.sh out/peers
	$(BIN)/python -m tests.peers out/peers $(if $(ONLY),--only $(ONLY))

# Stopped, it goes on where it was: the records are kept by commit. The exit code says of faults.
reliability: $(READY)
	mkdir -p out
	-$(DATABASES) --resume --out $(RECORDS).jsonl
	-$(DATABASES) --resume --out $(RECORDS)-beside.jsonl $(BESIDE)
	$(DATABASES) --read $(RECORDS).jsonl $(RECORDS)-beside.jsonl \
	  --write RELIABILITY.md --tables docs/reliability-tables.md

bench: $(READY)
	$(BIN)/python bench/capture.py
	$(BIN)/python bench/partition.py

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY)
	$(BIN)/mypy

clean:
	rm -rf .venv .venv-* build out *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(READY): requirements.txt pyproject.toml
	@$(or $(PYTHON),false) -c '$(NEW_ENOUGH)' 2>/dev/null || { \
	  echo "foretrace needs Python 3.11 or newer: no python3.11 or new enough python3 found." >&2; \
	  echo "Install one, or name it: make PYTHON=/path/to/python3.11 $(MAKECMDGOALS)" >&2; exit 1; }
	@echo "First use: setting up $(VENV), which takes some minutes, once."
	$(PYTHON) -m venv $(VENV)
	$(PIP) install --quiet $(if $(TORCH),,--no-deps) \
	  $(if $(TORCH_INDEX),--retries 2 --extra-index-url $(TORCH_INDEX)) \
	  $(if $(TORCH),torch==$(TORCH),$$(grep '^torch==' requirements.txt))
	$(PIP) install --quiet -r <(grep -v '^torch==' requirements.txt)
	$(PIP) install --quiet --no-deps --no-build-isolation -e .
	touch $@

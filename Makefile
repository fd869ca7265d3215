# `make help` lists what there is to do. Everything but `clean` and `help` sets up $(VENV) first.

VENV ?= .venv
LOAD_ARGS ?= --users 16 --spawn-rate 16 --run-time 30s

supported := import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 13))
PYTHON ?= $(firstword $(foreach python,python3.11 python3.12 python3,$(shell $(python) -c '$(supported)' 2>/dev/null && echo $(python))))

bin := $(VENV)/bin
installed := $(VENV)/.installed
interpreter := $(VENV)/.interpreter
docs_tools := $(VENV)/.docs

.PHONY: help serve gateway demo load sweep compare bench bench-step bench-mixed bench-client bench-gateway bench-queue peers gpu-check \
	precision experiments docs test test-engine check clean
.DEFAULT_GOAL := help

help:
	@echo "make serve    Triton with the model on 127.0.0.1, in the foreground"
	@echo "              variables: MODEL (folder or hub id), HTTP_PORT, GRPC_PORT, METRICS_PORT, ARGS (tritonserver flags)"
	@echo "make gateway  OpenAI's API on 127.0.0.1:9000 for a running server; variables: GRPC_PORT, ARGS (its own flags)"
	@echo "make demo     watch a running server batch requests in flight"
	@echo "make load     load a running server with Locust; variable: LOAD_ARGS (such as --workload FILE, --users N)"
	@echo "make sweep    how much a server carries and where its knee is: a report in results/, in 15 minutes; variable: SWEEP"
	@echo "make compare  settings and servers beside each other under one workload; variable: COMPARE, see its --help"
	@echo "make bench    tokens per second of the engine, alone and behind Triton, and of transformers, beside the committed ratios; in minutes"
	@echo "make bench-step   where a step's time goes on the CPU, and what each way to make it faster, each kernel and each instruction set brings"
	@echo "make bench-mixed  how evenly tokens come while long prompts arrive"
	@echo "make precision    what bfloat16 and int8 change: perplexity, divergence, agreement with transformers"
	@echo "make peers    install vLLM and llama.cpp for make compare COMPARE=--peers"
	@echo "make bench-client what the client library costs beside the generated gRPC stubs, and its memory"
	@echo "make bench-gateway what the OpenAI-compatible gateway adds to a token's time"
	@echo "make bench-queue  time to first token when many requests come at once, with the engine's queue and with Triton's"
	@echo "make gpu-check    whether the engine is right and fast on a GPU; needs torch and transformers; variables: GPU (flags), PYTHON"
	@echo "make experiments  claims of papers tried on the scheduler, in the simulator; plots in results/; in minutes"
	@echo "make docs     the documentation as a site, in build/site; a broken link is an error"
	@echo "make test     the whole test suite, on a real server"
	@echo "make test-engine  the tests of the engine with torch, without a server, in two minutes"
	@echo "make check    lint, types and the unit tests, in seconds"
	@echo "make clean    remove $(VENV) and what tools left behind"
	@echo "Variables for all: PYTHON (3.11 or 3.12), VENV, INFLIGHT_CACHE (where Triton and the model are kept)"

$(installed): pyproject.toml client/pyproject.toml
	@$(or $(PYTHON),false) -c '$(supported)' || { echo "error: PYTHON=$(PYTHON): Python 3.11 or 3.12 is needed" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(bin)/python -m pip install --disable-pip-version-check -e '.[dev]' -e './client[cli,gateway]'
	@touch $@

serve: $(installed)
	@$(bin)/python -m scripts.launch.serve

gateway: $(installed)
	@$(bin)/inflight-gateway --server 127.0.0.1:$(or $(GRPC_PORT),8001) $(ARGS)

demo: $(installed)
	@$(bin)/python -m scripts.demo

load: $(installed)
	$(bin)/locust --headless -f load_tests/locustfile.py $(LOAD_ARGS)

sweep: $(installed)
	@$(bin)/python -m load_tests.capacity $(SWEEP)

compare: $(installed)
	@$(bin)/python -m load_tests.compare $(COMPARE)

bench: $(installed)
	@$(bin)/python -m load_tests.bench --json results/bench.json $(BENCH)

bench-step: $(installed)
	@$(bin)/python -m load_tests.bench.step_breakdown

bench-mixed: $(installed)
	@$(bin)/python -m load_tests.bench.mixed

precision: $(installed)
	@$(bin)/python -m load_tests.bench.precision

bench-client: $(installed)
	@$(bin)/python -m load_tests.bench.client

bench-gateway: $(installed)
	@$(bin)/python -m load_tests.bench.gateway

peers: $(installed)
	@$(bin)/python -m scripts.peers

bench-queue: $(installed)
	@$(bin)/python -m load_tests.bench.queues

# Not from $(VENV): the machine has a torch for its GPU.
gpu-check:
	@PYTHONPATH=.:model_repository/llm/1 $(or $(PYTHON),python3) -m scripts.gpu_check $(GPU)

experiments: $(installed)
	@$(bin)/python -m load_tests.experiments all

$(docs_tools): $(installed)
	$(bin)/python -m pip install --disable-pip-version-check -e '.[docs]'
	@touch $@

docs: $(docs_tools)
	@NO_MKDOCS_2_WARNING=1 $(bin)/mkdocs build --strict

$(interpreter): $(installed)
	$(bin)/python -m pip install --disable-pip-version-check -e '.[interpreter]'
	@touch $@

pytest := $(bin)/python -m pytest --numprocesses 2 --dist loadfile --no-loadscope-reorder --durations 20

test: $(interpreter)
	$(pytest)

test-engine: $(interpreter)
	$(pytest) -m "not slow" tests/engine tests/parity

check: $(installed)
	$(bin)/ruff check .
	$(bin)/ruff format --check .
	$(bin)/mypy
	$(bin)/python -m pytest -q tests/unit

clean:
	rm -rf $(VENV) build .pytest_cache .mypy_cache .ruff_cache .hypothesis *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

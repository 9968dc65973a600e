# Two commands do it all on a fresh Debian 12 machine: `make demo` and `make test`.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
BUILD_JOBS ?= $(shell nproc)
# Libraries with threads of their own.
THREADED := kernels memory exec engine events server

.PHONY: help deps release clients golden test test-release test-asan test-tsan test-fuzz test-cuda-build test-gpu soak demo bench-host bench-policies bench-cpu bench-server clean

help:
	@echo "make demo   agents' sessions through a real MoE under too little memory: static, paper, ours"
	@echo "make test   ASan+UBSan, fuzzers, TSan, CUDA where there is nvcc, release with real clients; ends with ctest's count"
	@echo "make soak   random runs and fuzzers with new seeds, SOAK_MINUTES=30"

# Debian packages, from scripts/debian-packages.txt. Silent and quick when nothing is missing.
deps:
	@scripts/install-packages.sh

release: deps
	@scripts/build.sh release

demo: deps
	@scripts/build.sh release vamp
	@scripts/demo.sh

test: test-asan test-fuzz test-tsan test-cuda-build test-release

test-release: release clients
	ctest --test-dir build/release --output-on-failure -j $(BUILD_JOBS)

# Real clients and routers, pinned; the tests that use them are skipped where they are not.
clients: deps
	@scripts/python-env.sh clients || echo "no clients from PyPI: the tests that use them will be skipped"

test-asan: deps
	@scripts/build.sh asan
	ctest --test-dir build/asan --output-on-failure -j $(BUILD_JOBS)

# Only what has threads.
test-tsan: deps
	@scripts/build.sh tsan $(THREADED:%=vamp_%_test)
	set -e; for part in $(THREADED); do build/tsan/src/$$part/vamp_$${part}_test --gtest_brief=1; done

# On a machine with a GPU and nvcc; elsewhere these tests skip themselves.
test-gpu: deps
	@scripts/build.sh cuda
	for test in build/cuda/src/*/cuda/*_test; do "$$test" || exit 1; done

test-fuzz: deps
	@scripts/run-fuzzers.sh 20

# The CUDA code compiles where there is nvcc, and its tests start, with or without a GPU.
test-cuda-build: deps
	@command -v nvcc >/dev/null || { echo "no nvcc on PATH: the CUDA code is not built"; exit 0; }; \
	  scripts/build.sh cuda cuda_tests_and_benches && \
	  for test in build/cuda/src/*/cuda/*_test; do "$$test" --gtest_brief=1 || exit 1; done

# Random runs with new seeds, for as long as you like: make soak SOAK_MINUTES=120
SOAK_MINUTES ?= 30
soak: deps
	@scripts/soak.sh $(SOAK_MINUTES)

# The golden checkpoints of tests/golden, made anew with pinned transformers (5 GB of packages).
golden: deps
	@scripts/python-env.sh golden
	.venv-golden/bin/python tools/make_golden.py

# Our CPU executor beside transformers and llama.cpp on one thread (5 GB of packages, and 4 CPU
# minutes to build llama.cpp, the first time).
bench-cpu: deps
	@scripts/python-env.sh
	@scripts/python-env.sh golden
	@bench/peers/build_llama_cpp.sh
	@scripts/build.sh release model_bench
	@bench/peers/compare.py

# What a step costs the host; the last line is JSON.
bench-host: deps
	@scripts/build.sh release scheduler_bench
	@build/release/bench/scheduler_bench

# Policies side by side over sessions, think times, links and routings, simulated; the last line is JSON.
bench-policies: deps
	@scripts/build.sh release policy_sweep
	@build/release/bench/policy_sweep

# 1,000 streams on one io thread; the last line is JSON.
bench-server: deps
	@scripts/build.sh release server_bench
	@build/release/bench/server_bench --step-ms 10
	@build/release/bench/server_bench --step-ms 20

clean:
	rm -rf build

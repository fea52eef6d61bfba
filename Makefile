# The verbs of this repository; `make help` lists them. Each first installs what it needs from Debian
# (hack/setup). They write below build/ and into the user's cache folder, nowhere else.
# All paths are relative: make cannot handle a space in a path, and your folder's name may have one.
SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: help setup build demo demo-cluster demo-weights test image test-guest gpu gpu-bundle bench soak year lint format asan tsan mutants record clean

# ordinary: as any user, without gigabytes. all: also root, cgroups, another uid, torch 2, sanitizers, lint.
TIER ?= ordinary
PYTHON := /usr/bin/python3
# How long a soak lasts, and a year.
MINUTES ?= 30
STEPS ?= 1000000
# Bytecode is not written beside the sources. Without any an import of torch takes twice the time.
export PYTHONPYCACHEPREFIX := $(CURDIR)/build/pycache
unexport PYTHONDONTWRITEBYTECODE

help:  ## this list
	@echo "make VERB, where VERB is one of"
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  \1\t\2/p' Makefile | expand -t 15
	@echo
	@echo "CI=1 or YES=1 installs missing Debian packages without asking. ROWS narrows bench, MUTANT mutants;"
	@echo "CAIRN_SIM_SEED=N replays one life of the simulator (docs/testing.md)."

build:  ## everything, into build/main; links in build/bin
	@hack/setup build
	@hack/build

demo:  ## a real training job saves every step, is killed, and goes on
	@hack/setup demo
	@hack/build --first cairnd cairn cairn_python
	@$(PYTHON) hack/demo/run.py

demo-cluster:  ## the same on three nodes, which are lost, and a database, which is away; RDMA=1 copies over RDMA, too
	@hack/setup demo-cluster
	@$(if $(RDMA),hack/setup guest)
	@hack/build --first cairnd cairn cairn_python
	@$(PYTHON) hack/demo/cluster.py $(if $(RDMA),--rdma)

demo-weights:  ## a trainer publishes each step's weights, consumers stream them; one is killed, and the daemon
	@hack/setup demo-weights
	@hack/build --first cairnd cairn_python
	@$(PYTHON) hack/demo/weights.py

image:  ## the container image of a node, by docker or buildah (docs/cluster.md)
	@hack/image

test:  ## all tests an ordinary user can run; TIER=all for the rest too
	@hack/setup $(if $(filter all,$(TIER)),full,test)
	@$(PYTHON) tests/run.py --tier $(TIER)

test-guest:  ## what needs RDMA devices, in an emulated machine that has some
	@hack/setup guest
	@$(PYTHON) tests/run.py --only build,guest

gpu:  ## what needs a GPU: the tests of a CUDA device, and what this machine's bus can do; says so where there is none
	@hack/setup build
	@hack/build gpu_test gpu_facts_test gpu_floors gpu_streams gpu_saves cairnd cairn_python
	@hack/gpu $(GIB)

gpu-bundle:  ## the same in one folder, build/gpu-bundle, for a GPU machine without Cairn's libraries
	@hack/setup build
	@hack/build gpu_test gpu_facts_test gpu_floors gpu_streams gpu_saves cairnd cairn_python
	@hack/gpu --bundle build/gpu-bundle

bench:  ## the figures of docs/benchmarks.md; ROWS="save_warm persist" for some
	@hack/setup bench
	@hack/build cairnd cairn cairn_python cairn_bench cairn_apply_bench catalog_bench rdma_bench gpu_streams pipeline_bench
	@$(PYTHON) tests/bench/run.py $(ROWS)

soak:  ## a node under load, kills included, must end as it began; MINUTES=30, SEED=N for the same plan
	@hack/setup test
	@hack/build cairnd cairn cairn_python
	@$(PYTHON) tests/soak/soak.py --minutes $(MINUTES) $(if $(SEED),--seed $(SEED))

year:  ## a year of the engine in injected time, a million steps; must end as it began (STEPS=N)
	@hack/setup test
	@hack/build engine_year_test
	@CAIRN_YEAR_STEPS=$(STEPS) build/main/tests/year/engine_year_test

lint:  ## formatting, clang-tidy, house rules, structure, ruff
	@hack/setup lint
	@$(PYTHON) hack/lint.py

format:  ## clang-format and ruff format, in place
	@hack/setup lint
	@$(PYTHON) hack/lint.py --format

asan:  ## unit tests under AddressSanitizer and UndefinedBehaviorSanitizer
	@hack/setup test
	@$(PYTHON) tests/run.py --only asan

tsan:  ## unit tests with threads, under ThreadSanitizer
	@hack/setup test
	@$(PYTHON) tests/run.py --only tsan

mutants:  ## plants named bugs one at a time; the tests must catch each (MUTANT=name for one)
	@hack/setup full
	@$(PYTHON) hack/mutants.py $(MUTANT)

record:  ## what the ledger of the full tier lacks, however long it takes; begun again, it goes on
	@hack/setup full
	@$(PYTHON) tests/run.py --record

clean:  ## removes build/
	@rm -rf build

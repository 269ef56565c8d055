# Everything that a new machine needs is made here; `make help` lists the targets.
PYTHON ?= python3
# Tests that run beside each other.
JOBS ?= 2
# Where `make serve` listens.
LISTEN ?= 127.0.0.1:7480
VENV := .venv
BIN := $(VENV)/bin
GEN_VENV := .venv-gen
# Where it is set, as in CI, a language whose tools are missing is a failure; else it is named.
export CLIENTS_REQUIRED ?= $(CI)
skipped = { echo 'skipped: no $(1), so the $(2)'; test -z "$$CLIENTS_REQUIRED"; }
# Generates for a language whose tools are there.
GEN_GO = if command -v go > /dev/null; then $(BIN)/buf generate --template clients/go/buf.gen.yaml; else rm -rf build/gen-go; $(call skipped,go,Go code is not generated); fi

TYPESCRIPT := clients/typescript
GEN_TYPESCRIPT = if command -v npm > /dev/null; then $(MAKE) --no-print-directory $(TYPESCRIPT)/node_modules/.done && $(BIN)/buf generate --template $(TYPESCRIPT)/buf.gen.yaml; else rm -rf build/gen-typescript; $(call skipped,npm,TypeScript code is not generated); fi

.DEFAULT_GOAL := help
.PHONY: help demo tools test test-long test-clients test-go test-typescript test-java test-rust conformance lint format gen gen-check bench postgres serve clean

help: ## list the targets
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

# The base: what the server, the terminal and the demo need.
$(VENV)/.run: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Runlane needs Python 3.11 or newer")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[server,openai,mcp,postgres]'
	touch $@

# What checks and tests need beside it.
$(VENV)/.dev: $(VENV)/.run
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[server,openai,mcp,postgres,dev]'
	touch $@

# Stubs made by a new grpcio-tools refuse older runtimes, so it has a place of its own.
$(GEN_VENV)/.done: Makefile
	test -x $(GEN_VENV)/bin/python || $(PYTHON) -m venv $(GEN_VENV)
	$(GEN_VENV)/bin/python -m pip install --quiet --disable-pip-version-check 'grpcio-tools==1.76.0' 'mypy-protobuf==5.1.0' 'protobuf>=6.33.5,<7'
	touch $@

# What the TypeScript client is made and tested with.
$(TYPESCRIPT)/node_modules/.done: $(TYPESCRIPT)/package-lock.json
	cd $(TYPESCRIPT) && npm ci --ignore-scripts --no-audit --no-fund --loglevel=error
	touch $@

demo: $(VENV)/.run ## the main job, told by a program: submit, steer, follow up, fork, survive a kill
	$(BIN)/python examples/session_demo.py

serve: $(VENV)/.run ## a server on 127.0.0.1:7480 (LISTEN=...) with its data in ./runlane.db
	$(BIN)/runlane serve --store sqlite:runlane.db --listen $(LISTEN)

tools: $(VENV)/.dev ## grpcurl and buf in .venv/bin, for the walks of the documents
	@echo 'export PATH="$(CURDIR)/$(BIN):$$PATH"'

postgres: ## install Debian's PostgreSQL for the tests, where there is none
	@ls /usr/lib/postgresql/*/bin/initdb > /dev/null 2>&1 || command -v initdb > /dev/null || { apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends postgresql; }

test: $(VENV)/.dev ## all tests but the long ones
	$(BIN)/python -m pytest -m 'not long and not alone' -n $(JOBS) --dist worksteal --timeout 300
	$(BIN)/python -m pytest -m 'alone and not long'
	@$(MAKE) --no-print-directory test-clients

test-clients: test-go test-typescript test-java test-rust ## the clients of other languages, each where its tools are

test-go: $(VENV)/.run ## the Go client: formatting, vet, staticcheck, tests with the race detector
	@if command -v go > /dev/null; then $(MAKE) --no-print-directory -C clients/go; else $(call skipped,go,Go client is not tested); fi

test-java: $(VENV)/.run ## a Java program with stubs made from the protos, against a server
	@if command -v mvn > /dev/null && command -v java > /dev/null; then \
	  mvn -q -B --no-transfer-progress -f clients/java-example/pom.xml compile \
	  && $(BIN)/python tools/run_example.py java -cp 'build/java/classes:build/java/lib/*' dev.runlane.example.Example clients/service_config.json \
	  && java -cp 'build/java/classes:build/java/lib/*' dev.runlane.example.Golden conformance/golden/wire.json; \
	else $(call skipped,mvn or no java,Java example is not run); fi

test-rust: $(VENV)/.run ## a Rust program with stubs made from the protos, against a server
	@if command -v cargo > /dev/null; then \
	  cd clients/rust-example && CARGO_TARGET_DIR=$(CURDIR)/build/rust cargo build --quiet && cd $(CURDIR) \
	  && $(BIN)/python tools/run_example.py build/rust/debug/runlane-example \
	  && build/rust/debug/golden conformance/golden/wire.json; \
	else $(call skipped,cargo,Rust example is not run); fi

test-typescript: $(VENV)/.dev ## the TypeScript client: types, formatting, tests
	@if command -v npm > /dev/null; then $(MAKE) --no-print-directory $(TYPESCRIPT)/node_modules/.done && cd $(TYPESCRIPT) && npm run check && npm test; else $(call skipped,npm,TypeScript client is not tested); fi

test-long: $(VENV)/.dev ## the tests that take long
	$(BIN)/python -m pytest -m long --timeout 7200

conformance: $(VENV)/.dev ## the scenarios of the conformance kit, against a server (TARGET=..., else its own)
	$(BIN)/python -m conformance $(if $(TARGET),--target $(TARGET)) conformance/scenarios

bench: $(VENV)/.dev ## figures as ratios to floors of the same run
	$(BIN)/python -m tests.bench

lint: $(VENV)/.dev gen-check ## every static check
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/buf lint
	$(BIN)/buf format --diff --exit-code
	if test -f proto/released.binpb; then $(BIN)/buf breaking --against proto/released.binpb; else echo 'no release yet: nothing to break'; fi

format: $(VENV)/.dev ## format code and protos
	$(BIN)/ruff check --fix-only --quiet .
	$(BIN)/ruff format .
	$(BIN)/buf format -w

gen: $(VENV)/.dev $(GEN_VENV)/.done ## make the generated code anew
	PATH="$(CURDIR)/$(GEN_VENV)/bin:$$PATH" $(BIN)/buf generate
	$(GEN_GO)
	$(GEN_TYPESCRIPT)
	$(BIN)/python tools/place_generated.py
	$(BIN)/buf build -o build/protocol.binpb
	$(BIN)/python tools/make_reference.py
	$(BIN)/python tools/make_sync.py

gen-check: $(VENV)/.dev $(GEN_VENV)/.done ## the generated code is as the protos say
	PATH="$(CURDIR)/$(GEN_VENV)/bin:$$PATH" $(BIN)/buf generate
	$(GEN_GO)
	$(GEN_TYPESCRIPT)
	$(BIN)/python tools/place_generated.py --check
	$(BIN)/buf build -o build/protocol.binpb
	$(BIN)/python tools/make_reference.py --check
	$(BIN)/python tools/make_sync.py --check

clean: ## remove what was made
	rm -rf $(VENV) $(GEN_VENV) build dist .mypy_cache .ruff_cache .pytest_cache

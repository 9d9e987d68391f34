# Every target prints what it does and how long it took.

SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

CARGO_FLAGS ?= --locked
STEP := ./hack/step.sh

.PHONY: help
help: ## Show this help
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: demo
demo: ## Start a control plane with everything on it and walk through it (DEMO_ONESHOT=1: end afterwards)
	@./hack/demo.sh

.PHONY: demo-stop
demo-stop: ## Stop what make demo left running
	@./hack/demo.sh stop

.PHONY: test
test: control-plane ## Set up what the tests need and run all of them
	@$(STEP) "Proxy servers that the tests probe" ./hack/proxy-servers.sh
	@$(STEP) "Build binaries that the tests start" cargo build $(CARGO_FLAGS) --workspace --bins
	@$(STEP) "Run all tests" cargo test $(CARGO_FLAGS) --workspace --no-fail-fast

.PHONY: control-plane
control-plane: ## Build etcd, kube-apiserver and the other control plane binaries, once
	@$(STEP) "Control plane binaries" cargo run $(CARGO_FLAGS) --quiet --package devcluster -- build

.PHONY: bench
bench: control-plane ## Measure against the peers; writes target/bench/*.json (BENCH="read fleet": fewer)
	@CARGO_FLAGS="$(CARGO_FLAGS)" ./hack/bench.sh $(BENCH)

.PHONY: conformance
conformance: control-plane ## Hold the aggregated API against the Go server, row by row (CASE=part of an id)
	@$(STEP) "Conformance cases" cargo test $(CARGO_FLAGS) --quiet --package aggregated-api --test conformance -- $(CASE)

.PHONY: manifests
manifests: ## Generate config/crd from the types
	@$(STEP) "Generate CRDs" cargo run $(CARGO_FLAGS) --quiet --package crawl-api --bin crdgen -- config/crd

.PHONY: fmt
fmt: ## Format the code
	@$(STEP) "Format" cargo fmt --all

.PHONY: lint
lint: ## Check format, lints, spelling, scripts, dependencies and generated files
	@./hack/lint.sh

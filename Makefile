# One line or one script a target. `make test TESTFLAGS=-race` passes flags on to go test.

export GOTOOLCHAIN := go1.27.3

SHELL       := bash
.SHELLFLAGS := -euo pipefail -c

TESTFLAGS ?=
FUZZTIME  ?= 30s

CHAOS_DURATION ?= 15m
MODEL_RUNS     ?= 10000
CHAOS_SEED     ?= $(shell date +%s)
TOOL      := go tool -modfile=$(CURDIR)/tools/go.mod
# A module of its own, because karve-lint needs an older golang.org/x/tools.
GOLANGCI  := go tool -modfile=$(CURDIR)/tools/golangci/go.mod
# A test that fails is run once more, alone. One that then passes is reported at the end and in _output/reruns-*.txt, and is still a bug.
# Without -vet=off go test would look into all that a package imports, as lint has done.
GO_TEST    = $(TOOL) gotestsum --format pkgname-and-test-fails --format-icons text --hide-summary skipped --rerun-fails=1 --rerun-fails-run-root-test
ON_CLUSTER = KARVE_REQUIRE_CLUSTER=1 KARVE_CALLS=$(CURDIR)/_output/calls $(GO_TEST)
E2E_FLAGS := -vet=off -count=1 -timeout 30m
# The core of the end-to-end tests: launch, share, consolidate, drift, wrong input, repair.
CORE       = EightyPodsShareEightMachinesUntilIdle|ElevenPodsShareTwoMachines|StockKarpenterIgnores|PodThatKarpenterCanServe|IdleNodeWithDoNotDisrupt|InterruptedMachine|UnhealthyMachines|InvalidInput
RERUNS     = if cat _output/reruns-*.txt 2>/dev/null; then echo "*** These tests passed only when they were run again. That is a bug."; fi
REFRESH    = mkdir -p _output && rm -f _output/reruns-$@*.txt

.DEFAULT_GOAL := help
.PHONY: help demo cluster cluster-down cluster-bin batch-bin kubelet-bin test test-all test-unit test-e2e test-dra test-versions test-upgrade test-kubelet gpu-bundle test-gpu chaos model bench bench-bill bench-burst bench-consolidation bench-cost bench-go bench-groups bench-launch bench-node bench-scale fuzz lint lint-fast lint-all fmt generate verify build release publish site image test-image sbom hostile clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  %-19s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

demo: ## See Karve work: a real control plane, Karpenter on a local AWS, simulated machines; UI=1 serves the web page and stays up, DRA=1 has backend DRA
	@tools/demo $(if $(UI),--ui) $(if $(DRA),--dra)

cluster: cluster-bin ## Start a local cluster that stays until cluster-down
	go -C test run ./harness/cluster/cmd/karve-cluster up

cluster-down: ## Stop the local cluster and remove what it left
	go -C test run ./harness/cluster/cmd/karve-cluster down

cluster-bin: ## Build the local cluster's binaries into _output/bin (minutes the first time)
	go -C test run ./harness/cluster/cmd/karve-cluster build

batch-bin: ## Build also what queues and schedules batch jobs in tests into _output/bin (a quarter of an hour the first time)
	go -C test run ./harness/cluster/cmd/karve-cluster build --batch

kubelet-bin: ## Build what a node with real containers runs into _output/bin, as root; nothing without root
	go -C test run ./harness/kubelet/cmd/karve-kubelet build

# Long tests skip with -short.
test: SHORT := -short
test: lint test-unit test-e2e ## Lint, and run the tests, except long ones
	@$(RERUNS)

test-all: batch-bin lint test-unit test-e2e ## Lint, and run all tests (three quarters of an hour)
	@$(RERUNS)

test-unit: ## Run the tests that need no cluster
	@$(REFRESH)
	$(GO_TEST) --rerun-fails-report=_output/reruns-$@.txt --packages ./... -- -vet=off $(SHORT) $(TESTFLAGS)
	cd test && $(GO_TEST) --rerun-fails-report=../_output/reruns-$@-suites.txt --packages "$$(../tools/packages unit)" -- -vet=off $(SHORT) $(TESTFLAGS)
	go -C tools test -vet=off $(TESTFLAGS) ./krew ./oci
	go -C test/suites/nvidia test -vet=off $(TESTFLAGS) .

test-e2e: cluster-bin kubelet-bin ## Run the tests on a real API server and on the local cluster
	@$(REFRESH)
	rm -rf _output/calls
	@tools/chromium
	cd test && $(ON_CLUSTER) --rerun-fails-report=../_output/reruns-$@.txt --packages ./suites/e2e -- $(E2E_FLAGS) $(SHORT) $(TESTFLAGS)
	cd test && KARVE_BACKEND=DRA $(ON_CLUSTER) --rerun-fails-report=../_output/reruns-$@-dra.txt --packages ./suites/e2e -- $(E2E_FLAGS) $(SHORT) $(TESTFLAGS) -run '$(CORE)'
	cd test && $(ON_CLUSTER) --rerun-fails-report=../_output/reruns-$@-others.txt --packages "$$(../tools/packages cluster | grep -v '/suites/e2e$$')" -- -p 2 $(E2E_FLAGS) $(SHORT) $(TESTFLAGS)
	KARVE_RIGHTS=$(CURDIR)/_output/calls go -C test test -vet=off -count=1 $(SHORT) ./suites/rights
	@tools/chromium check
	@go -C test run ./harness/kubelet/cmd/karve-kubelet check

test-dra: cluster-bin ## Run the end-to-end tests with backend DRA
	cd test && KARVE_BACKEND=DRA $(ON_CLUSTER) --packages ./suites/e2e -- $(E2E_FLAGS) $(TESTFLAGS)

OLDEST := v1.33.13 v1.14.1
test-versions: export KUBEBUILDER_ASSETS = $(CURDIR)/_output/kubernetes-$(subst $() ,-karpenter-,$(OLDEST))
test-versions: ## Run the core of the end-to-end tests and the tests on a real kubelet with the OLDEST Kubernetes and Karpenter that are supported, as root
	tools/old-versions $(OLDEST)
	$(MAKE) cluster-bin kubelet-bin
	cd test && $(ON_CLUSTER) --packages ./suites/e2e -- $(E2E_FLAGS) $(TESTFLAGS) -run '$(CORE)|FleetRolls|AnotherStrategy|EachFeatureGate'
	cd test && $(ON_CLUSTER) --packages './suites/api ./suites/kubelet' -- $(E2E_FLAGS) -p 1 $(TESTFLAGS)

FROM ?= c2a755cd
test-upgrade: export KARVE_OLD_RELEASE = $(CURDIR)/_output/release-$(FROM)
test-upgrade: cluster-bin kubelet-bin ## Upgrade CRDs, controller and agent from the commit FROM (v0.1.0) to this one while pods run, and go back, as root
	tools/old-release $(FROM)
	cd test && $(ON_CLUSTER) --packages './suites/e2e ./suites/kubelet' -- $(E2E_FLAGS) -v $(TESTFLAGS) -run 'UpgradeToThisRelease|AgentIsUpgraded'

test-kubelet: cluster-bin kubelet-bin ## Run the tests on a real kubelet with real containers alone, as root, and let none skip
	KARVE_REQUIRE_CLUSTER=1 KARVE_REQUIRE_KUBELET=1 go -C test test -p 1 -count=1 -timeout 30m $(TESTFLAGS) ./harness/kubelet/... ./suites/kubelet

hostile: ## Generate 100,000 objects and 10,000 clusters with bad values that the API server accepts, and see that none stops or slows others (an hour or two)
	KARVE_HOSTILE=$(or $(KARVE_HOSTILE),100000) go -C test test -v -count=1 -timeout 4h -run 'Unrelated|OfATenant' $(TESTFLAGS) ./suites/hostile

gpu-bundle: ## Build _output/gpu-bundle, whose program run tests and measures the NVIDIA GPUs of a machine that has only a driver
	tools/gpu-bundle

test-gpu: gpu-bundle ## Test and measure the NVIDIA GPUs of this machine, as root: report.md in _output. KARVE_DIVIDE=1g.10gb divides them too, KARVE_COMPUTE_MODE=1 and KARVE_TIME_SLICE=1 set their compute mode and interval of time slices, and restore them
	cd _output && gpu-bundle/run

chaos: cluster-bin ## Let everything go wrong for CHAOS_DURATION (15m), drawn from CHAOS_SEED, and see that nothing is lost
	KARVE_REQUIRE_CLUSTER=1 KARVE_CHAOS_DURATION=$(CHAOS_DURATION) KARVE_CHAOS_SEED=$(CHAOS_SEED) go -C test test -v -count=1 -timeout 24h $(TESTFLAGS) -run ClusterSettles ./suites/chaos

model: ## Check in MODEL_RUNS (10000) random runs that nothing gets stuck, and that the model finds fixed bugs (half an hour)
	KARVE_MODEL_RUNS=$(MODEL_RUNS) KARVE_MODEL_MUTANTS=1 go -C test test -v -count=1 -timeout 24h $(TESTFLAGS) -run 'Stuck|FixedBugs' ./suites/model

bench: ## Plan fixed workloads with Karve and with its peers, and write the figures to _output/bench.json (minutes)
	go -C test run ./bench/planning

bench-bill: ## Replay weeks of pods that come and go, and add up what machines and restarts cost with Karve and with its peers; writes _output/bench-bill.json (an hour on two cores)
	go -C test run ./bench/bill/cmd/bench-bill

bench-burst: cluster-bin ## Measure what 1,500 pods that come within seconds cost above one plan for all, with Karve and with Karpenter alone, and write _output/bench-burst.json (an hour)
	go -C test run ./bench/burst

bench-consolidation: ## Consolidate fleets that have lost half of their pods with Karve and with its peers, and write _output/bench-consolidation.json (minutes)
	go -C test run ./bench/replay/cmd/bench-consolidation

bench-cost: ## Measure how long kubectl karve cost takes for 90 days of 5,000 nodes, with a real Prometheus, and write _output/bench-cost.json (minutes)
	go -C test run ./bench/cost

bench-groups: ## Simulate a day of training jobs on a limited number of GPUs with plans that know groups and without, and write _output/bench-groups.json (minutes)
	go -C test run ./bench/groups/cmd/bench-groups

bench-go: ## Run the benchmarks of the packages
	go test -run '^$$' -bench . -benchmem -p 1 ./pkg/...

bench-node: cluster-bin kubelet-bin ## Measure karve-node beside NVIDIA's device plugin on a real kubelet, as root
	go -C test run ./bench/node

bench-launch: cluster-bin ## Measure how long 500 pods wait for a node each, with Karve and with Karpenter alone, and write _output/bench-launch.json
	go -C test run ./bench/launch

bench-scale: cluster-bin ## Measure what Karve costs on up to 5,000 nodes and 50,000 pods, Karpenter beside it, and write _output/bench-scale.json
	go -C test run ./bench/scale/cmd/bench-scale

fuzz: ## Run each fuzz target for FUZZTIME (30s)
	tools/fuzz $(FUZZTIME)

# The compiler collects its garbage less often, which takes an eighth less time.
lint: export GOGC := 400
lint: ## Compile everything in both modules, and run go vet, staticcheck and other quick linters
	go build -C tools -o ../_output/bin/karve-lint ./lint
	go vet -vettool=$(CURDIR)/_output/bin/karve-lint ./...
	go -C test vet -vettool=$(CURDIR)/_output/bin/karve-lint ./...

lint-fast: ## Run the linters of golangci-lint that need no types, on everything (half a minute)
	$(GOLANGCI) golangci-lint run --fast-only
	cd test && $(GOLANGCI) golangci-lint run --fast-only

# LINTFLAGS=--new-from-merge-base=origin/main leaves out what the lines that are new do not cause.
lint-all: ## Run all linters of golangci-lint (a quarter of an hour the first time)
	$(GOLANGCI) golangci-lint run $(LINTFLAGS)
	cd test && $(GOLANGCI) golangci-lint run $(LINTFLAGS)
	$(GOLANGCI) golangci-lint-kube-api-linter run -c tools/kube-api-linter.yml $(LINTFLAGS) ./pkg/apis/...

fmt: ## Format the code as the linters want it
	$(GOLANGCI) golangci-lint fmt
	cd test && $(GOLANGCI) golangci-lint fmt

generate: ## Write deep copies, CRDs and the RBAC role from the code
	tools/generate

verify: lint-fast ## Fail when generate would change something, or when lint-fast finds something
	tools/verify

build: ## Build the commands into _output/bin
	tools/build

release: ## Build all files of a release into _output/release: docs/releasing.md
	tools/release

publish: ## Copy the images and the charts of the release into the registry REPOSITORY
	tools/publish

site: ## Build the documentation as a site with search into _output/site, with npm; fails if a link leads nowhere
	tools/site

image: ## Build the container images for amd64 and arm64 with ko; tools/image says what it wants to know
	tools/image

test-image: ## Build both images upon a base of the test's own, and look into them (minutes)
	KARVE_IMAGES=1 go -C test test -count=1 -timeout 30m ./suites/image

sbom: build ## Write what the commands are made of into _output/sbom, in CycloneDX
	tools/sbom

clean: ## Remove what was built
	rm -rf _output

# Targets of the local cluster, for the root Makefile to include.

.PHONY: cluster-bin cluster-up cluster-down

cluster-bin: ## Build the local cluster's binaries into _output/bin; minutes the first time.
	go run ./test/cluster/cmd/karve-cluster build

cluster-up: ## Start a local cluster that stays until cluster-down.
	go run ./test/cluster/cmd/karve-cluster up

cluster-down: ## Stop the local cluster and remove what it left.
	go run ./test/cluster/cmd/karve-cluster down

# attestd: make help lists the targets.

GO        ?= go
VERSION   ?= $(shell sh packaging/version.sh)
LDFLAGS   := -X main.release=$(VERSION)
GOFLAGS_  := -trimpath -buildvcs=false
TESTFLAGS ?= -race -timeout 60m
# By default, a program built with the race detector waits a second before it exits, for reports of other threads. The
# tests start some thousand programs.
export GORACE ?= atexit_sleep_ms=0
FUZZTIME  ?= 30s
CUTS      ?= 5000
SOAK      ?= 5m
ARGS      ?=
ROUNDS    ?= 1
SUITES    ?= bookworm trixie
QUIETLY   := sh packaging/quietly.sh
# The published clients override transitive dependencies, which npm supports since 10. Debian 12 and 13 have npm 9.
NPM10     := npm exec --yes npm@10.9.4 --

export CGO_ENABLED = 1
# The Go that packaging/deps.sh downloads if this machine's is too old.
export PATH := $(CURDIR)/bin/toolchain:$(PATH)

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help run build check test test-drills deps test-deps promtool playground console clients lint bench bench-attestations bench-peer bench-page bench-scale bench-greedy power-cuts test-restarts test-cluster bench-cluster fuzz soak test-signatures packages image test-packages deps-packages test-fresh test-opencryptoki clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

run: deps build ## install missing packages, build, and run a throwaway appliance (ARGS='--listen 127.0.0.1:9000')
	@exec bin/attestd dev $(ARGS)

build: playground console ## build bin/attestd, with the playground and the console's graphs if Node is installed
	@$(QUIETLY) bin/build.log 'compiling bin/attestd$(if $(wildcard bin/attestd),, (the first time fetches its modules, and takes minutes))' \
	  $(GO) build $(GOFLAGS_) -ldflags '$(LDFLAGS)' -o bin/attestd ./appliance/cmd/attestd

WITNESSES := appliance/cmd/attestd/testdata/witnesses
bin/modules: go.sum $(WITNESSES)/litewitness/go.sum $(WITNESSES)/transparency/go.sum
	@$(QUIETLY) bin/modules.log 'fetching the Go modules' sh -c '$(GO) list -deps -test ./... && \
	  cd $(WITNESSES)/litewitness && $(GO) list -deps . tool && cd ../transparency && $(GO) mod vendor -o $(CURDIR)/bin/vendored && rm -r $(CURDIR)/bin/vendored'
	@touch $@

test: test-deps playground console clients promtool bin/modules ## install missing packages and run all tests except the drills, with the race detector
	@echo 'compiling and running the tests (some minutes before the first result)'
	$(GO) vet ./...
	TEST_REQUIRE_CLIENTS=1 $(GO) test $(TESTFLAGS) -shuffle=on -skip '^TestDrill' ./...

# Drills need time or luck: kills under load, failing disks, clusters, soak.
DRILLS ?= ^TestDrill
test-drills: test-deps bin/modules ## run the drills (to select some: DRILLS='^TestDrillCluster')
	$(GO) test $(TESTFLAGS) -run '$(DRILLS)' $$(git grep -l 'func TestDrill' -- '*_test.go' | sed 's,^,./,; s,/[^/]*$$,,' | sort -u)

deps: ## install build dependencies: gcc, Go, softhsm2, and Node for playground and console (apt or dnf)
	@GO='$(GO)' sh packaging/deps.sh

test-deps:
	@GO='$(GO)' sh packaging/deps.sh test

promtool: test-deps
	@sh packaging/promtool.sh

# The playground is bundled from npm. Without Node the build succeeds, and /graphiql explains how to get the playground.
playground: api/graphiql/dist/index.html
api/graphiql/dist/index.html: api/graphiql/package-lock.json api/graphiql/build.mjs api/graphiql/src/*
	@if command -v npm >/dev/null 2>&1; then \
	  $(QUIETLY) bin/playground.log 'bundling the playground' sh -c 'cd api/graphiql && npm ci --no-audit --no-fund && npm run build && touch dist/index.html'; \
	else echo 'playground: npm is not installed; built without it'; fi

# The console's graphs are bundled from npm. Without Node the console shows their values as a table.
console: api/console/dist/uplot.js
api/console/dist/uplot.js: api/console/package-lock.json api/console/build.mjs
	@if command -v npm >/dev/null 2>&1; then \
	  $(QUIETLY) bin/console.log "bundling the console's graphs" sh -c 'cd api/console && npm ci --no-audit --no-fund && npm run build && touch dist/uplot.js'; \
	else echo 'console: npm is not installed; built without its graphs'; fi

# Published clients of the hosted service. The tests run them against attestd.
clients: api/graphql/clienttest/node_modules/.package-lock.json
api/graphql/clienttest/node_modules/.package-lock.json: api/graphql/clienttest/package-lock.json
	@$(QUIETLY) bin/clients.log 'fetching the published clients that the tests run' \
	  sh -c 'cd api/graphql/clienttest && $(NPM10) ci --no-audit --no-fund && touch node_modules/.package-lock.json'

GOLANGCI := github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0
VULNCHECK := golang.org/x/vuln/cmd/govulncheck@v1.8.0

check: ## format, vet, lint and test the packages that changed since a commit (SINCE=main for a branch)
	@GO='$(GO)' SINCE='$(SINCE)' sh packaging/check.sh $(GOLANGCI)

lint: deps ## gofmt, vet, golangci-lint, licenses, vulnerabilities (VULNDB=URL for a mirror; VULNDB=offline skips vulnerabilities)
	@test -z "$$(gofmt -l $$(git ls-files '*.go'))" || { echo 'not gofmt-ed:'; gofmt -l $$(git ls-files '*.go'); exit 1; }
	$(GO) vet ./...
	$(GO) run $(GOLANGCI) run
	@$(GO) run ./packaging/release licenses ./... >/dev/null
	@GO='$(GO)' VULNDB='$(VULNDB)' sh packaging/vulncheck.sh $(VULNCHECK)

power-cuts: deps ## simulate CUTS power cuts during writes to the journal (make test-drills does 40)
	$(GO) test -run '^TestDrillPowerCuts$$' -count=1 -timeout 60m -v ./store/bolt -powercuts $(CUTS)

bench: test-deps build bench-peer ## measure attestations (results in bin/performance.json), reads over a million transfers (bin/reads.json), following, forwarding and a quorum
	@$(MAKE) bench-attestations ARGS='$(ARGS)'
	$(GO) test -run '^$$' -bench BenchmarkReads -benchtime 1x -timeout 60m ./appliance/bench -reads $(CURDIR)/bin/reads.json
	$(GO) test -run '^$$' -bench BenchmarkFollow -benchtime 1x -timeout 30m ./appliance/bench
	$(GO) test -run '^$$' -bench BenchmarkQuorum -benchtime 1x ./appliance/bench

bench-peer: test-deps # install PostGraphile, which BenchmarkReads compares with
	cd appliance/bench/testdata/postgraphile && npm ci

bench-attestations: deps build ## measure attestations only, in about four minutes (ARGS='-window 5s -rounds 5' takes longer; ARGS=-help lists the flags)
	$(GO) test -run '^$$' -bench BenchmarkAttestations -benchtime 1x -timeout 2h ./appliance/bench -results $(CURDIR)/bin/performance.json $(ARGS)

bench-page: ## write the tables of docs/performance.md from docs/performance.json, docs/reads.json and docs/scale.json
	@$(GO) test -run '^$$' -bench BenchmarkAttestations -benchtime 1x ./appliance/bench -hsms= -systems= \
	  -results $(CURDIR)/docs/performance.json -page $(CURDIR)/docs/performance.md >/dev/null
	@$(GO) test -run '^$$' -bench BenchmarkReads -benchtime 1x ./appliance/bench \
	  -reads $(CURDIR)/docs/reads.json -page $(CURDIR)/docs/performance.md >/dev/null
	@$(GO) test -run '^$$' -bench BenchmarkScale -benchtime 1x ./appliance/bench -transfers 0 \
	  -results $(CURDIR)/docs/scale.json -page $(CURDIR)/docs/performance.md >/dev/null

bench-scale: deps build ## fill ten million transfers, read and follow (results in bin/scale.json; ARGS='-transfers 1000000' takes less)
	@$(GO) test -run '^$$' -bench BenchmarkScale -benchtime 1x -timeout 6h ./appliance/bench -results $(CURDIR)/bin/scale.json $(ARGS)

bench-greedy: deps build ## measure attestations while anonymous clients send as many reads as possible
	$(GO) test -run '^$$' -bench BenchmarkGreedyReads -benchtime 1x -timeout 10m ./appliance/bench

test-restarts: test-deps ## kill and restart the token's server a hundred times, under 0 to 64 connections
	$(GO) test -run '^TestDrillAttestsWithinTwoSecondsOfTheTokenServersReturn$$' -count=1 -parallel 1 -timeout 30m -v ./appliance/drills -restarts 25

test-cluster: test-deps ## run three appliances on PostgreSQL with a standby, under load, while each part fails, ROUNDS times (1)
	$(GO) test -run '^TestDrillCluster' -count=$(ROUNDS) -timeout 3h -v ./appliance/drills -drills

bench-cluster: test-deps build ## measure one, two and three appliances on PostgreSQL, and their use of resources
	$(GO) test -run '^$$' -bench '^BenchmarkCluster$$' -benchtime 1x -timeout 30m ./appliance/bench
	$(GO) test -run '^$$' -bench '^BenchmarkCeiling$$' -benchtime 1x -timeout 30m ./store/postgres

soak: test-deps ## load all functions of the appliance for SOAK (5m) while token, upstream and clients fail
	$(GO) test -run '^TestDrillSoak$$' -count=1 -timeout 3h -v ./appliance/drills -soak $(SOAK)

fuzz: deps ## fuzz every fuzz target for FUZZTIME each
	@for package in $$($(GO) list ./...); do \
	  for target in $$($(GO) test -list '^Fuzz' $$package | grep '^Fuzz'); do \
	    echo "$$package $$target"; $(GO) test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 20x $$package || exit 1; \
	  done; \
	done

test-signatures: deps ## compare the check of signatures with go-ethereum's recovery, on a million random and hostile cases
	$(GO) test -count=1 -timeout 60m -run TestAVerifierIsAsStrictAsRecovery -v ./appliance/secp256k1 -args -signatures 1000000

packages: deps playground console ## build the .deb and .rpm, their SBOM and checksums into dist/ (ARCHES='amd64 arm64', GPG_KEY=… signs)
	@GO='$(GO)' sh packaging/deps.sh build-packages
	@VERSION='$(VERSION)' GO='$(GO)' ARCHES='$(ARCHES)' GPG_KEY='$(GPG_KEY)' sh packaging/build.sh

image: packages ## build a container image into dist/, from Debian's packages (SOFTHSM=yes includes SoftHSM)
	@GO='$(GO)' sh packaging/deps.sh image
	@VERSION='$(VERSION)' GO='$(GO)' SOFTHSM='$(SOFTHSM)' sh packaging/image.sh

test-packages: deps-packages packages ## install the packages into a Debian that boots, upgrade, reboot, remove, purge
	VERSION='$(VERSION)' $(GO) test -tags packages -count=1 -timeout 1h -v ./packaging/... ./systemd

deps-packages: deps ## install dependencies of test-packages: debootstrap, systemd-nspawn, lintian, rpm, rpmlint, shellcheck
	@GO='$(GO)' sh packaging/deps.sh packages

test-fresh: deps ## run README's two commands in a Debian with only git and make (SUITES='bookworm trixie'; SHORT=1, without make test)
	@GO='$(GO)' sh packaging/deps.sh fresh
	SUITES='$(SUITES)' $(GO) test -tags fresh -run '^TestFresh$$' -count=1 -timeout 4h -v $(if $(SHORT),-short) ./packaging

test-opencryptoki: deps ## as root: test attestd with openCryptoki's soft token, in a Debian 13
	@GO='$(GO)' sh packaging/deps.sh fresh
	$(GO) test -tags opencryptoki -run '^TestOpenCryptoki$$' -count=1 -timeout 1h -v ./packaging

clean: ## remove build results; keeps .attestd, the throwaway appliance
	rm -rf bin dist api/graphiql/dist/index.html api/graphiql/dist/assets api/console/dist/uplot.* api/console/dist/assets

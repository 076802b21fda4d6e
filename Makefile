# Thin wrappers around the scripts.
.PHONY: docs answer-key kill-analytics kill-stream run bad-day reach test test-ci test-all test-pythons leaks sim fuzz chaos raft-chaos raft-failover hung-masters lease crash power attacks analytics-stream-load sustained-load bench-compare lock stubs sbom vulnerabilities supply systemd
run:
	./run
test:
	./test
# What a change must pass before it lands (docs/testing.md).
test-ci:
	./test --ci
test-all:
	./test --all
# build/site: the documentation, with a search; a dead link fails. docs/reference/: its pages with tables from the code, as Markdown
docs:
	@ROOT=$(CURDIR) sh -c '. tools/env.sh; prepare run test docs'
	.venv/bin/python -m tools.reference
	NO_MKDOCS_2_WARNING=1 .venv/bin/python -m mkdocs build --strict
	@echo "open build/site/index.html"
# ./test with every Python from 3.11 on that is here; make test-pythons ARGS=--ci
test-pythons:
	tools/test_pythons.sh $(ARGS)
# A thousand brokers come and go in a container: nothing of them stays (three minutes)
leaks:
	@ROOT=$(CURDIR) sh -c '. tools/env.sh; prepare run test'
	TESTS_ALL=1 .venv/bin/python -m pytest -q -s -m long tests/unit/broker/container/test_leaks.py
# The units of keelmq init on three machines that boot systemd in namespaces (root; three minutes)
systemd:
	@ROOT=$(CURDIR) sh -c '. tools/env.sh; prepare run test'
	TESTS_ALL=1 .venv/bin/python -m pytest -q -m long tests/cluster/test_systemd_boot.py
# make sim, make sim KIND=raft SEED=7 (docs/testing.md)
sim:
	./run keelmq sim $(if $(KIND),--kind $(KIND)) $(if $(SEED),--seed $(SEED))
fuzz:
	./run keelmq fuzz frames --count 1000000
	./run keelmq fuzz http --count 10000
	./run keelmq fuzz security --count 300000
	./run keelmq fuzz grpc --count 300000
# make chaos SEED=7 SECURE=1 (docs/chaos.md)
chaos:
	./run keelmq chaos --minutes 30 --plain $(if $(SEED),--seed $(SEED)) $(if $(SECURE),--secure)
# A bad day of a secured cluster under traffic, fault after fault; prints a table of them (root; ten minutes)
bad-day:
	@ROOT=$(CURDIR) sh -c '. tools/env.sh; prepare run test'
	TESTS_ALL=1 .venv/bin/python -m pytest -q -s -m long tests/cluster/test_bad_day.py
# Clients inside and outside of an address translation while pods are upgraded, drained, lost and moved (root); make reach ONLY="zone cut off"
reach:
	@ROOT=$(CURDIR) sh -c '. tools/env.sh; prepare run test'
	.venv/bin/python -m tests.cluster.reach $(if $(ONLY),--only "$(ONLY)") $(if $(CLIENTS),--clients $(CLIENTS))
# The controllers' log without brokers, as processes; make raft-chaos SEED=7 (docs/testing.md)
raft-chaos:
	./run python -m tests.cluster.raft_chaos chaos $(if $(SEED),--seed $(SEED))
	./run python -m tests.cluster.raft_chaos chaos --certificates $(if $(SEED),--seed $(SEED))
raft-failover:
	./run python -m tests.cluster.raft_chaos failover
# 24 simulated hours of noisy machines: no master that works is taken for a hung one (ten minutes)
hung-masters:
	@ROOT=$(CURDIR) sh -c '. tools/env.sh; prepare run test'
	TESTS_ALL=1 .venv/bin/python -m pytest -q -m "long or not long" tests/sim/test_hang_budget.py
# The power of all replicas fails, one of them paused; make power COUNT=2 SEED=7 (docs/testing.md)
power:
	./run python -m tests.crash.power $(or $(COUNT),10) $(or $(SEED),1)
# Masters are cut off from controllers and slaves: 0 acknowledgements after the election (root); make lease MODE=all-ack RUNS=20
lease:
	./run python -m tests.cluster.lease_runs --mode $(or $(MODE),all) --runs $(or $(RUNS),200) --jobs $(or $(JOBS),2)
# kill -9 fifty times under heavy SYNC_FLUSH writing; make crash COUNT=5 SEED=7 (docs/testing.md)
crash:
	./run python -m tests.crash.loop $(or $(COUNT),50) $(or $(SEED),1)
# Attacks on a cluster of real processes, with security off and on; make attacks MODE=closed ONLY=replica/
attacks:
	./run python -m tests.attacks $(MODE) $(ONLY)
# Messy telemetry with a known truth: every number of every table, on the embedded engine and on Spark; make answer-key GROUPS=8 SEED=7
answer-key: engines
	.venv/bin/python -m tests.spark.key $(if $(GROUPS),--groups $(GROUPS)) $(if $(SEED),--seed $(SEED))
	.venv-spark/bin/python -m tests.spark.key $(if $(GROUPS),--groups $(GROUPS)) $(if $(SEED),--seed $(SEED))
# kill -9 of `keelmq analytics run`, its workers and servers, at random moments, on each engine; make kill-analytics COUNT=2 SEED=7
kill-analytics: engines
	.venv/bin/python -m tests.spark.kills --count $(or $(COUNT),20) $(if $(SEED),--seed $(SEED))
	.venv-spark/bin/python -m tests.spark.kills --count $(or $(COUNT),20) $(if $(SEED),--seed $(SEED))
engines:
	@ROOT=$(CURDIR) sh -c '. tools/env.sh; prepare run test analytics; VENV=$(CURDIR)/.venv-spark; prepare run test spark'
# kill -9 of `keelmq analytics stream` at random moments; its totals are exact afterwards. make kill-stream COUNT=3
kill-stream: engines
	for each in .venv .venv-spark; do KILLS=$(or $(COUNT),20) $$each/bin/python -m pytest tests/cluster/test_analytics_stream.py -q -k kill_9 || exit 1; done
# The stream under 5,000 records a second for ten minutes; make analytics-stream-load RATE=500 SECONDS=60
analytics-stream-load:
	./run python -m tests.bench.analytics_stream --rate $(or $(RATE),5000) --seconds $(or $(SECONDS),600)
# Full load for ten minutes: the dispatch backlog of replicas, and memory; make sustained-load SECONDS=60 (docs/performance.md)
sustained-load:
	./run python -m tests.bench.sustained --seconds $(or $(SECONDS),600)
# This tree against an older one, in turns: make bench-compare BASE=HEAD~20 SUITES="send pull" ROUNDS=5 (docs/performance.md)
bench-compare:
	@test -n "$(BASE)" || { echo "usage: make bench-compare BASE=COMMIT [SUITES=\"send pull\"] [ROUNDS=3]" >&2; exit 2; }
	./run python -m tests.bench.compare $(BASE) $(or $(SUITES),send pull replication) --rounds $(or $(ROUNDS),3)
# Rewrites the lock files from pyproject.toml, without registry addresses.
lock:
	tools/lock.sh
# proxy/wire/messaging_pb2.py and .pyi, from messaging.proto
stubs:
	@ROOT=$(CURDIR) sh -c '. tools/env.sh; prepare run test'
	.venv/bin/python -m grpc_tools.protoc -I. --python_out=. --pyi_out=. proxy/wire/messaging.proto
# What an installed KeelMQ is made of, as CycloneDX JSON in build/; make sbom OUTPUT=FILE (SECURITY.md)
sbom: supply
	.venv/bin/python tools/sbom.py $(if $(OUTPUT),--output $(OUTPUT))
# Error 1: a locked package has a known vulnerability; Error 3: no database reachable, nothing was checked (SECURITY.md)
vulnerabilities: supply
	.venv/bin/python tools/vulnerabilities.py
supply:
	@ROOT=$(CURDIR) sh -c '. tools/env.sh; prepare run supply'

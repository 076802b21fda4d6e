# Thin wrappers; the scripts do the work.
.PHONY: run test test-all sim fuzz chaos raft-chaos raft-failover lock
run:
	./run
test:
	./test
test-all:
	./test --all
# make sim, make sim KIND=raft SEED=7 (docs/testing.md)
sim:
	./run keelmq sim $(if $(KIND),--kind $(KIND)) $(if $(SEED),--seed $(SEED))
fuzz:
	./run keelmq fuzz frames --count 1000000
	./run keelmq fuzz http --count 10000
# docs/chaos.md; make chaos SEED=7
chaos:
	./run keelmq chaos --minutes 30 --plain $(if $(SEED),--seed $(SEED))
# The controllers' log alone, as processes (docs/testing.md); make raft-chaos SEED=7
raft-chaos:
	./run python -m tests.cluster.raft_chaos chaos $(if $(SEED),--seed $(SEED))
	./run python -m tests.cluster.raft_chaos chaos --certificates $(if $(SEED),--seed $(SEED))
raft-failover:
	./run python -m tests.cluster.raft_chaos failover
# 50 times kill -9 during heavy SYNC_FLUSH writing (docs/testing.md); make crash COUNT=5 SEED=7
crash:
	.venv/bin/python -m tests.crash.loop $(or $(COUNT),50) $(or $(SEED),1)
# New lock files from pyproject.toml; no registry address gets in.
lock:
	tools/lock.sh

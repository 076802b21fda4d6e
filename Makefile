# Thin wrappers; the scripts do the work.
.PHONY: run test test-all lock
run:
	./run
test:
	./test
test-all:
	./test --all
# New lock files from pyproject.toml; no registry address gets in.
lock:
	tools/lock.sh

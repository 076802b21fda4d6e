#!/bin/sh
# Compiles requirements/*.txt from pyproject.toml: hashed, for every platform, without any registry address.
set -eu
ROOT=$(cd "$(dirname "$0")/.." && pwd)
cd "$ROOT"
compile() {
  out=$1; shift
  .tools/bin/uv pip compile pyproject.toml requirements/build.in "$@" --universal --python-version 3.11 \
    --generate-hashes --no-emit-index-url --no-header --quiet --output-file "requirements/$out.txt"
}
compile run --extra grpc
compile test --extra dev --extra grpc --constraints requirements/run.txt
compile analytics --extra analytics --constraints requirements/test.txt
# Spark itself, in .venv-spark: it and the client of the group `analytics` are the same package. With a Java for tests.
compile spark --extra spark requirements/spark.in --constraints requirements/test.txt
# Builds the pages where there is no Node.
.tools/bin/uv pip compile requirements/node.in --universal --python-version 3.11 \
  --generate-hashes --no-emit-index-url --no-header --quiet --output-file requirements/node.txt
# RocketMQ's Python client for gRPC, in an environment of its own (tests/interop/.venv-client).
.tools/bin/uv pip compile requirements/grpc_client.in --universal --python-version 3.11 --constraints requirements/test.txt \
  --generate-hashes --no-emit-index-url --no-header --quiet --output-file requirements/grpc_client.txt
# Tools of the supply chain (make sbom, make vulnerabilities), which need nothing of the project.
.tools/bin/uv pip compile requirements/supply.in --universal --python-version 3.11 --constraints requirements/test.txt \
  --generate-hashes --no-emit-index-url --no-header --quiet --output-file requirements/supply.txt
# The documentation site (make docs), beside the tests.
.tools/bin/uv pip compile requirements/docs.in --universal --python-version 3.11 --constraints requirements/test.txt --constraints requirements/supply.txt \
  --generate-hashes --no-emit-index-url --no-header --quiet --output-file requirements/docs.txt
python3 tools/downloads.py .tools/bin/uv run test:run analytics:run,test spark:run node grpc_client docs:run,test

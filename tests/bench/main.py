"""`keelmq bench SUITE [--json] [--size MIB]`: measures one suite, or `all`, and prints the figures."""

import importlib
import sys

from tests.bench.every_suite import run_all
from tests.bench.native import BenchError
from tests.bench.report import print_json, print_table

SUITES = (
    "codec",
    "send",
    "send_tls",
    "send_acl",
    "pull",
    "flush",
    "replication",
    "replica_behind",
    "failover",
    "telemetry",
    "controller",
    "start",
    "idle",
    "memory",
    "container",
    "analytics",
    "analytics_stream",
)
ALL = "all"
SIZED = ("replica_behind", "memory")
COUNTED = ("analytics",)
SECURE = ("failover",)


def run(
    suite: str,
    as_json: bool = False,
    size_mib: int | None = None,
    secure: bool = False,
    rows: int | None = None,
) -> int:
    """The exit code. The JSON object is the last line of stdout. size_mib: of the suites SIZED; secure: of
    SECURE; rows: of COUNTED."""
    if suite not in (*SUITES, ALL):
        print(f"keelmq bench: no suite {suite!r}; there are {', '.join(SUITES)}, and {ALL}", file=sys.stderr)
        return 2
    if size_mib is not None and suite not in SIZED:
        print(f"keelmq bench: --size is for {', '.join(SIZED)}", file=sys.stderr)
        return 2
    if secure and suite not in SECURE:
        print(f"keelmq bench: --secure is for {', '.join(SECURE)}", file=sys.stderr)
        return 2
    if rows is not None and suite not in COUNTED:
        print(f"keelmq bench: --rows is for {', '.join(COUNTED)}", file=sys.stderr)
        return 2
    if suite == ALL:
        return run_all(SUITES, as_json=as_json)
    options: dict[str, object] = {} if size_mib is None else {"size_mib": size_mib}
    if rows is not None:
        options["rows"] = rows
    if secure:
        options["secure"] = True
    try:
        results = importlib.import_module(f"tests.bench.{suite}").run(**options)
    except BenchError as error:
        print(f"keelmq bench {suite}: {error}", file=sys.stderr)
        return 1
    print_table(results)
    if as_json:
        print_json(results)
    return 0


if __name__ == "__main__":
    sys.exit(run(sys.argv[1], as_json="--json" in sys.argv))

"""The program mqbroker."""

import sys

from keelmq.runtime.collector import without_collector


def main() -> None:
    """Runs a broker with this process's arguments, and exits with its status."""
    with without_collector():
        from broker.app.program import run
    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()

"""The program mqbroker."""

import sys

from keelmq.runtime.quick_start import quick_imports


def main() -> None:
    """Runs a broker with this process's arguments, and exits with its status."""
    with quick_imports():
        from broker.app.program import run
        from keelmq.runtime.bounded_exit import end_with
    end_with(run(sys.argv[1:]))


if __name__ == "__main__":
    main()

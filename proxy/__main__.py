"""The program mqproxy."""

import sys

from keelmq.runtime.quick_start import quick_imports


def main() -> None:
    """Runs a proxy with this process's arguments, and exits with its status."""
    with quick_imports():
        from keelmq.runtime.bounded_exit import end_with
        from proxy.server.program import run
    end_with(run(sys.argv[1:]))


if __name__ == "__main__":
    main()

"""The program mqbrokercontainer."""

import sys

from keelmq.runtime.quick_start import quick_imports


def main() -> None:
    """Runs a container with this process's arguments, and exits with its status."""
    with quick_imports():
        from broker.container.program import run
        from keelmq.runtime.bounded_exit import EXIT_S_MAX, exit_within
    status = run(sys.argv[1:])
    exit_within(EXIT_S_MAX)  # Python waits for other threads, too
    sys.exit(status)


if __name__ == "__main__":
    main()

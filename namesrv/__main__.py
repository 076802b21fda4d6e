"""The programs mqnamesrv and mqcontroller."""

import sys

from keelmq.runtime.quick_start import quick_imports


def main() -> None:
    """Runs mqnamesrv and exits with its code."""
    with quick_imports():
        from keelmq.runtime.bounded_exit import end_with
        from namesrv.program import run
    end_with(run("mqnamesrv", sys.argv[1:]))


def controller_main() -> None:
    """Runs mqcontroller, the controller without a name server, and exits with its code."""
    with quick_imports():
        from keelmq.runtime.bounded_exit import end_with
        from namesrv.program import run
    end_with(run("mqcontroller", sys.argv[1:], controller_only=True))


if __name__ == "__main__":
    main()

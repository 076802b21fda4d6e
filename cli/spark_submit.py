"""The file to give to spark-submit: the commands of `keelmq analytics`, in the Spark that spark-submit has
started.

    spark-submit --master yarn [SPARK OPTIONS] cli/spark_submit.py run --input s3a://... --output s3a://...

The driver needs KeelMQ and pyarrow; executors need pyarrow only. Python puts the folder of such a file in
front of its search path, where cli/keelmq.py would hide the package keelmq: the folder above takes its
place."""

import sys
from pathlib import Path


def search_from(file: Path) -> None:
    """Puts the folder above that of `file` in front of the search path, in place of that of `file`."""
    folder = file.resolve().parent
    sys.path[:] = [str(folder.parent), *(each for each in sys.path if Path(each or ".").resolve() != folder)]


def main() -> None:
    search_from(Path(__file__))
    from cli.analytics_commands import app
    from cli.answer import run_answering

    run_answering("keelmq analytics", lambda: app(prog_name="keelmq analytics"))


if __name__ == "__main__":
    main()

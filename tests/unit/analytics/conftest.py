"""The tests of analytics need its packages, which a plain test environment lacks."""

import importlib.util

if importlib.util.find_spec("pyspark") is None:  # pytest.importorskip here would stop pytest itself
    collect_ignore_glob = ["*"]

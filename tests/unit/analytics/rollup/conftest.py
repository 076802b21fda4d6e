"""These tests need pyarrow, which a plain test environment lacks."""

import importlib.util

if importlib.util.find_spec("pyarrow") is None:  # pytest.importorskip here would stop pytest itself
    collect_ignore_glob = ["test_*.py"]

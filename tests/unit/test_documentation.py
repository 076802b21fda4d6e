"""Public means documented: the documents are compared with the code."""

import importlib.util
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent


def test_the_configuration_tables_are_those_of_the_models() -> None:
    spec = importlib.util.spec_from_file_location("config_tables", ROOT / "tools" / "config_tables.py")
    assert spec is not None and spec.loader is not None
    tables = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tables)
    text = tables.DOCUMENT.read_text()
    assert tables.rewritten(text) == text, "run: .venv/bin/python tools/config_tables.py"

"""Public means documented: the documents are compared with the code."""

import importlib.util
import re
from pathlib import Path

from namesrv.app import Namesrv
from namesrv.config import NamesrvConfig
from remoting.codes import RequestCode
from remoting.operation import OperationTable

ROOT = Path(__file__).parent.parent.parent


def test_the_configuration_tables_are_those_of_the_models() -> None:
    spec = importlib.util.spec_from_file_location("config_tables", ROOT / "tools" / "config_tables.py")
    assert spec is not None and spec.loader is not None
    tables = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tables)
    text = tables.DOCUMENT.read_text()
    assert tables.rewritten(text) == text, "run: .venv/bin/python tools/config_tables.py"


def section(document: str, title: str) -> str:
    """The text below a second-level heading of a document."""
    text = (ROOT / "docs" / document).read_text()
    found = re.search(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    assert found is not None, f"docs/{document} has no section {title!r}"
    return found[1]


def served(table: OperationTable) -> list[tuple[int, str, str]]:
    return [
        (code, RequestCode(code).name, f"/v1/{operation.name}")
        for code, (operation, _) in sorted(table.handlers.items())
    ]


def test_the_requests_of_the_name_server_are_those_of_its_table() -> None:
    rows = re.findall(r"^\| (\d+) \| (\w+) \| (\S+) \|", section("requests.md", "Name server"), re.MULTILINE)
    table = Namesrv(NamesrvConfig(listen_port=0, http_port=-1)).table
    assert [(int(code), name, path) for code, name, path in rows] == served(table)


def test_the_tests_that_the_pitfalls_name_exist() -> None:
    """`folder/file.py::test`, or `::test` for another test of the file before it."""
    missing = []
    for line in (ROOT / "docs" / "pitfalls.md").read_text().splitlines():
        path = None
        for folder_path, test in re.findall(
            r"((?:unit|property|cluster|sim|deploy)/[\w/]+\.py)?::(\w+)", line
        ):
            path = ROOT / "tests" / folder_path if folder_path else path
            if path is None or not path.exists() or f"def {test}(" not in path.read_text():
                missing.append(f"{folder_path or path}::{test}")
    assert missing == []

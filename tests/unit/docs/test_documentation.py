"""Public means documented: the documents are compared with the code."""

import re
from pathlib import Path

import pytest

from broker.app.broker import Broker
from broker.config.broker_config import AT_RUN_TIME as BROKER_AT_RUN_TIME
from cli.mqadmin.coverage import NEVER
from keelmq.remoting.codes import RequestCode
from keelmq.remoting.operation import OperationTable
from keelmq.upstream import keys as upstream
from namesrv.app import Namesrv
from namesrv.config import NamesrvConfig
from namesrv.plugins.controller.config import AT_RUN_TIME
from tests.support.controller_fakes import Bench
from tests.support.pages import ROOT, pages
from tests.unit.broker.app.test_broker_app import config
from tools.cli_tables import commands
from tools.config_tables import MODELS
from tools.reference import PAGES as PAGES_WITH_TABLES
from tools.reference import built


def test_every_command_is_on_the_page() -> None:
    """Every command that --help shows has a heading, an example and its JSON in docs/cli.md."""
    text = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    names = [name for name, _ in commands()]
    assert sorted(re.findall(r"^### `(.+)`$", text, re.MULTILINE)) == sorted(names)
    for name in names:
        part = re.split(r"^##", text.split(f"### `{name}`\n")[1], maxsplit=1, flags=re.MULTILINE)[0]
        assert f"$ {name}" in part, f"{name}: no example"
        assert "JSON: " in part or not name.startswith("mqadmin"), f"{name}: the shape of its JSON"


def test_the_pages_count_the_commands_of_the_newest_rocketmq() -> None:
    theirs = upstream.names()
    cli, changes = [(ROOT / name).read_text(encoding="utf-8") for name in ("docs/cli.md", "CHANGELOG.md")]
    count = len(theirs.commands)
    assert (
        f"of RocketMQ {theirs.version} that KeelMQ does not have" in cli and f"table of all {count}." in cli
    )
    assert f"`mqadmin` has all {count} commands of RocketMQ {theirs.version}," in changes
    missing = cli.split("## What mqadmin does not have\n")[1].split(" The flags ")[0]
    assert set(re.findall(r"`(\w+)`", missing)) == set(NEVER)


@pytest.mark.parametrize("name", sorted(PAGES_WITH_TABLES))
def test_a_page_can_be_built(name: str) -> None:
    """Every marker is filled, and the links of docs/reference/ lead to files that exist."""
    text = built(name)
    assert not set(re.findall(r"^<!-- (.+) -->$", text, re.MULTILINE)) & {*PAGES_WITH_TABLES[name]()}
    assert len(text) > len((ROOT / "docs" / name).read_text(encoding="utf-8"))
    for target in re.findall(r"\]\(([^)\s#]+)[^)]*\)", text):
        if "://" not in target and target not in PAGES_WITH_TABLES:
            assert (ROOT / "docs" / "reference").joinpath(target).resolve(strict=False).exists(), target


def test_a_key_of_a_runbook_is_one_of_the_programs() -> None:
    """Programs refuse an unknown key, and an operator with an alert has no time to look for the right one."""
    known = built("configuration.md")
    answers = {"dispatchBehindBytes", "getElections", "logDamage", "notWritable"}  # of mqadmin
    answers.add("retryMaxTimes")  # a setting of groups
    for page in sorted((ROOT / "docs" / "runbooks").glob("*.md")):
        keys = set(re.findall(r"`([a-z]+[A-Z]\w+)(?:=\w+)?`", page.read_text())) - answers
        assert {key for key in keys if f"`{key}`" not in known} == set(), page.name


def test_every_setting_has_an_effect_or_says_that_it_has_none() -> None:
    packages = [ROOT / name for name in ("broker", "keelmq", "namesrv", "proxy")]
    code = "".join(path.read_text() for package in packages for path in sorted(package.rglob("*.py")))
    read = set(re.findall(r"\.(\w+)\b", code))
    for model in MODELS:
        for name, info in model.model_fields.items():
            is_read = name in read or f'"{info.alias or name}"' in code
            assert is_read or (info.description or "").startswith(("without effect", "only ")), name


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


def test_the_requests_of_the_controller_are_those_of_its_tables(tmp_path: Path) -> None:
    rows = re.findall(r"^\| (\d+) \| (\w+) \| (\S+) \|", section("requests.md", "Controller"), re.MULTILINE)
    plugin = Bench(tmp_path).plugin
    (http,) = [each for each in plugin.context.http if isinstance(each, OperationTable)]
    fast_path = [(code, RequestCode(code).name, "–") for code in plugin.table.fast_path]
    assert served(plugin.table) == served(http)
    assert [(int(code), name, path) for code, name, path in rows] == sorted(fast_path + served(http))
    keys = section("requests.md", "Controller").split("Keys that 1009 changes")[1].split("\n\n")[0]
    assert re.findall(r"`(\w+)`", keys) == sorted(AT_RUN_TIME)


def codes_of(part: str) -> set[tuple[int, str]]:
    """Of a table whose rows may have several codes."""
    rows = re.findall(r"^\| ([\d, ]+) \| ([\w, ]+) \|", part, re.MULTILINE)
    return {
        (int(code), name)
        for codes, names in rows
        for code, name in zip(codes.split(", "), names.split(", "), strict=True)
    }


async def test_the_requests_of_the_broker_are_those_of_its_tables(tmp_path: Path) -> None:
    """1007 and 1008 are bound in controller mode only."""
    part, _ = section("requests.md", "Broker").split("Not served", 1)
    documented = codes_of(part)
    async with Broker(config(tmp_path)) as broker:
        table = broker.operations
    served = {(code, RequestCode(code).name) for code in {*table.handlers, *table.fast_path}}
    controlled = {(1007, "GET_BROKER_EPOCH_CACHE"), (1008, "NOTIFY_BROKER_ROLE_CHANGED")}
    assert documented - controlled == served
    assert not table.unsupported.keys() & {code for code, _ in documented}
    assert re.findall(r"`(\w+)`", part.split("Keys that 25 changes")[1]) == sorted(BROKER_AT_RUN_TIME)


def missing_tests(line: str) -> tuple[int, list[str]]:
    """How many tests a line names, and which do not exist. `folder/file.py::test` (or a class of tests),
    `::test` for another one of the file before it, `sim/seeds.txt: KIND SEED` for a seed that ./test runs."""
    missing, path = [], None
    named = re.findall(
        r"((?:unit|property|scenarios|cluster|sim|fuzz|deploy|interop)/[\w/]+\.py)?::(\w+)", line
    )
    for folder_path, test in named:
        path = ROOT / "tests" / folder_path if folder_path else path
        pattern = re.compile(rf"^\s*(async )?(def|class) {test}\b", re.MULTILINE)
        if path is None or not path.exists() or not pattern.search(path.read_text()):
            missing.append(f"{folder_path or path}::{test}")
    seeds = re.findall(r"sim/seeds\.txt: (\w+ \d+)", line)
    kept = {" ".join(each.split()[:2]) for each in (ROOT / "tests/sim/seeds.txt").read_text().splitlines()}
    return len(named) + len(seeds), missing + [f"sim/seeds.txt: {seed}" for seed in seeds if seed not in kept]


@pytest.mark.parametrize("page", ["pitfalls.md", "track-record.md", "operators.md"])
def test_the_tests_that_a_page_names_exist(page: str) -> None:
    lines = (ROOT / "docs" / page).read_text().splitlines()
    assert [name for line in lines for name in missing_tests(line)[1]] == []


def test_a_test_that_is_gone_is_named() -> None:
    line = "| x | unit/docs/test_documentation.py::test_nothing, ::missing_tests; sim/seeds.txt: whole 0 |"
    assert missing_tests(line) == (
        3,
        ["unit/docs/test_documentation.py::test_nothing", "sim/seeds.txt: whole 0"],
    )


def test_every_mended_fault_of_the_track_record_has_a_test() -> None:
    mended = section("track-record.md", "Mended")
    rows = [line for line in mended.splitlines() if line.startswith("| ") and "| held by |" not in line]
    assert len(rows) > 20
    assert [row for row in rows if not missing_tests(row.rpartition(" | ")[2])[0]] == []
    dated = re.compile(r"\| (2026-\d\d-\d\d) \| (2026-\d\d-\d\d), [\w (`),]+, [0-9a-f]{8}[ |]")
    found = [(row, dated.search(row)) for row in rows]
    assert [row for row, dates in found if dates is None or dates[1] > dates[2]] == []


PAGES = pages()
OURS = r"(?:keelmq|namesrv|broker|cli|analytics|pytest_keelmq|tests|tools|deploy)"


def test_the_paths_that_the_pages_name_exist() -> None:
    """`broker/ha/service.py`, `broker/pop/`."""
    wrong = [
        f"{page.name}: {path}"
        for page in PAGES
        for path in re.findall(rf"`({OURS}/[\w./-]+)`", page.read_text())
        if not _exists(path)
    ]
    assert wrong == []


def _exists(path: str) -> bool:
    return (ROOT / path).exists() or (ROOT / f"{path}.py").exists()


def test_the_pages_name_the_folders_of_keelmq() -> None:
    folders = {each.parent.name for each in (ROOT / "keelmq").glob("*/__init__.py")}
    for page, begin in (("README.md", "| `keelmq/` |"), ("docs/architecture.md", "Packages, ")):
        (line,) = (each for each in (ROOT / page).read_text().splitlines() if each.startswith(begin))
        assert set(re.findall(r"`(\w+)/`", line)) - {"keelmq"} == folders, page


def test_every_picture_is_on_a_page() -> None:
    """That the linked ones exist is a matter of the links."""
    shown = {
        name
        for page in PAGES
        for name in re.findall(r"\((?:docs/)?(?:\.\./)?images/([\w.-]+)\)", page.read_text())
    }
    assert {each.name for each in (ROOT / "docs" / "images").iterdir()} == shown


def test_the_links_between_the_pages_lead_somewhere() -> None:
    """To files that exist, and to headings that they have."""
    wrong = []
    for page in PAGES:
        for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
            path, _, heading = target.partition("#")
            if "://" in target:
                continue
            other = page.parent / path if path else page
            if not other.exists():
                wrong.append(f"{page.name}: {target}")
            elif heading:
                titles = re.findall(r"^#+ (.+)$", other.read_text(), re.MULTILINE)
                anchors = {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}
                if heading not in anchors:
                    wrong.append(f"{page.name}: {target}")
    assert wrong == []


def test_a_key_is_never_made_where_others_can_read_it() -> None:
    """By a command that a page or an error gives to an operator."""
    told = pages()
    told += [path for package in ("namesrv", "broker", "cli") for path in (ROOT / package).rglob("*.py")]
    lines = [line for path in told for line in path.read_text().splitlines() if "head -c 32" in line]
    assert len(lines) > 4
    assert [line for line in lines if "(umask 077; head -c 32" not in line] == []

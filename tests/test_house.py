"""The house rules that a machine can check: layers, circles, purity, sizes, and what must never be in here.

One test per rule. A test names every offender, as `module: what is wrong`. A KNOWN_ list holds what was wrong
when the rule was made. An entry that is not wrong any more fails, too, so these lists only get shorter.
"""

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import pytest

from tests.support import private_names
from tests.support.imports import (
    PACKAGES,
    ROOT,
    arrows,
    circles,
    folders,
    imported,
    is_in,
    module_graph,
    modules,
    package_of,
    room_graph,
    rooms,
    tree_of,
)

IMPURE = {
    "asyncio", "concurrent", "datetime", "fastapi", "logging", "mmap", "multiprocessing", "os", "pathlib",
    "pysyncobj", "random", "secrets", "select", "signal", "socket", "ssl", "subprocess", "threading", "time",
    "uuid", "uvicorn", "uvloop",
}  # fmt: skip
"""A core never waits, reads a clock, rolls dice or touches a file: all of that comes in as values."""

FLOOR_0 = (
    "keelmq.client.message", "keelmq.health.silence", "keelmq.health.status", "keelmq.remoting.address_text",
    "keelmq.remoting.booleans", "keelmq.remoting.codes",
    "keelmq.remoting.command", "keelmq.remoting.frame", "keelmq.remoting.lenient_json",
    "keelmq.remoting.operation", "keelmq.remoting.operations", "keelmq.remoting.records",
    "keelmq.runtime.log_buckets", "proxy.wire",
)  # fmt: skip
"""What a core may import besides the cores of its package and of those below it."""

MAY_IMPORT: Mapping[str, set[str]] = {
    "keelmq": set(),
    "namesrv": {"keelmq"},
    "broker": {"keelmq"},
    "proxy": {"broker", "keelmq"},
    "pytest_keelmq": {"broker", "keelmq", "namesrv"},
    "cli": {"analytics", "keelmq"},
    "analytics": {"keelmq"},
}
"""The other packages that a package may import."""
READS_ABOVE = {"keelmq.analytics": "analytics"}
"""A module that programs import, and the package above it that it makes public."""
CLI_READS = {
    "broker.admin.repair", "broker.app.start_check", "broker.backup.manifest", "broker.backup.mark_lost",
    "broker.backup.log_records", "broker.backup.offline",
    "broker.backup.offline_check", "broker.backup.queue_repair", "broker.backup.restore",
    "broker.config.broker_config", "broker.config.grpc_settings", "broker.container.config",
    "broker.container.core.identity", "broker.container.core.members", "broker.container.core.placement",
    "broker.container.core.plan", "broker.container.inner_config", "broker.naming.vip_port",
    "namesrv.config", "namesrv.plugins.controller.backup_file", "namesrv.plugins.controller.config",
    "namesrv.plugins.controller.core.restored", "namesrv.plugins.controller.core.state",
    "namesrv.plugins.controller.restore", "proxy.server.config", "proxy.wire",
}  # fmt: skip
"""The doctor judges configuration files by the models that the programs load them with; repair, backup and
restore work on the files of stopped programs; moves between processes of a container are planned as it places
brokers itself."""

FLOORS: Mapping[str, tuple[str, ...]] = {
    "analytics": ("compaction", "queries", "engine rollup", "fleet pages views", "live"),
    "broker": (
        "core",
        "message",
        "store",
        "filter ha stats",
        "healing plain_ha",
        "admission",
        "metadata",
        "config",
        "clients",
        "put",
        "timers transactions",
        "handlers",
        "pop",
        "naming",
        "controller_mode",
        "admin",
        "backup",
        "app",
        "container",
    ),
    "broker.clients": ("core",),
    "broker.container": ("core", "workers"),
    "broker.filter": ("core",),
    "broker.ha": ("core",),
    "broker.plain_ha": ("core",),
    "broker.metadata": ("core",),
    "broker.pop": ("core",),
    "broker.stats": ("core",),
    "broker.store": ("log", "index queue"),
    "broker.timers": ("core",),
    "broker.transactions": ("core",),
    "cli": (
        "lab",
        "doctor mqadmin status",
        "convert_config",
        "machines",
        "rebalance",
        "backup upgrade",
        "verify",
    ),
    "cli.lab": ("chaos",),
    "cli.mqadmin": ("layouts", "commands"),
    "cli.rebalance": ("core",),
    "cli.upgrade": ("core",),
    "cli.verify": ("core",),
    "keelmq": ("upstream", "runtime", "remoting", "web", "security", "client", "health", "console"),
    "keelmq.console": ("core", "data", "actions"),
    "keelmq.client": ("core", "cluster", "admin producer", "consumer"),
    "keelmq.remoting": ("messages operations", "servers"),
    "keelmq.security": ("core", "audit"),
    "keelmq.runtime": ("tls",),
    "namesrv": ("core", "handlers", "plugins", "http"),
    "proxy": ("wire", "core", "server"),
    "namesrv.plugins": ("controller",),
    "namesrv.plugins.controller": ("core", "raft", "election", "requests", "http"),
    "namesrv.plugins.controller.raft": ("storage", "transport", "membership"),
}
"""The folders in a folder, from the bottom up, a floor in each string. An import goes to a lower floor."""
KNOWN_UPWARD: set[str] = set()

KNOWN_MODULE_CIRCLES: tuple[set[str], ...] = ()
"""Modules of one package that import each other in a circle. Part of one may be solved already."""
KNOWN_ROOM_CIRCLES: tuple[set[str], ...] = ()
"""The same for what is directly in one folder: modules, and folders with all that they hold."""

PRINTED_BY = "`python -m tests.support.imports` prints the imports."

FUNCTION_LINES_MAX = 70
MODULE_LINES_MAX = 600
KNOWN_LONG_LINES_MAX = 650
KNOWN_LONG: set[str] = set()
FOLDER_MODULES_MAX = 24
KNOWN_FULL: set[str] = set()


def shrinking(wrong: Iterable[str], known: Iterable[str]) -> list[str]:
    """What is wrong and not known, and what is known but not wrong any more."""
    wrong, known = set(wrong), set(known)
    return sorted(wrong - known) + [f"{each}: solved, take it off the list" for each in sorted(known - wrong)]


def none_of(wrong: Iterable[str], hint: str = "") -> None:
    """Fails with all of them, a line for each."""
    lines = sorted(wrong)
    assert not lines, "\n".join([f"{len(lines)} offenders. {hint}", *lines])


def cores() -> Iterator[str]:
    return (name for name in modules() if "core" in name.split("."))


# -- layers ------------------------------------------------------------------------------------------------


def test_there_is_a_house() -> None:
    assert len(modules()) > 400
    assert len(list(cores())) > 50
    assert set(MAY_IMPORT) == set(PACKAGES)


def test_packages_import_only_what_is_below_them() -> None:
    wrong = []
    for name, path in modules().items():
        package = package_of(name)
        assert package is not None, name
        for target in imported(path):
            other = package_of(target)
            if other in (None, package) or other in MAY_IMPORT[package]:
                continue
            if READS_ABOVE.get(name) != other and not (package == "cli" and target in CLI_READS):
                wrong.append(f"{name}: imports {target}")
    none_of(wrong)


def test_no_program_imports_tests() -> None:
    none_of(name for name, path in modules().items() if any(is_in(each, "tests") for each in imported(path)))


def test_cores_are_pure() -> None:
    wrong = [
        f"{name}: imports {target}"
        for name in cores()
        for target in imported(modules()[name])
        if target.split(".")[0] in IMPURE
    ]
    none_of(wrong)


def test_cores_stand_on_floor_0() -> None:
    wrong = []
    for name in cores():
        for target in imported(modules()[name]):
            package = package_of(target)
            mine = package_of(name)
            is_core = (
                "core" in target.split(".") and mine is not None and package in {mine, *MAY_IMPORT[mine]}
            )
            if package is not None and not is_core and not any(is_in(target, each) for each in FLOOR_0):
                wrong.append(f"{name}: imports {target}")
    none_of(wrong)


def test_namesrv_never_names_a_plugin() -> None:
    wrong = [
        f"{name}: imports {target}"
        for name, path in modules().items()
        if is_in(name, "namesrv") and not is_in(name, "namesrv.plugins")
        for target in imported(path)
        if is_in(target, "namesrv.plugins.controller")
    ]
    none_of(wrong)


# -- circles -----------------------------------------------------------------------------------------------


def told(found: Iterable[frozenset[str]], known: Iterable[set[str]]) -> list[str]:
    """Circles that are in no known one, and known ones that none is in."""
    found, known = list(found), list(known)
    new = [sorted(circle) for circle in found if not any(circle <= each for each in known)]
    solved = [sorted(each) for each in known if not any(circle <= each for circle in found)]
    return [f"a circle: {' '.join(each)}" for each in new] + [
        f"solved, take it off the list: {' '.join(each)}" for each in solved
    ]


def test_no_modules_import_each_other_in_a_circle() -> None:
    found = [circle for package in PACKAGES for circle in circles(module_graph(package))]
    none_of(told(found, KNOWN_MODULE_CIRCLES), PRINTED_BY)


def test_no_rooms_import_each_other_in_a_circle() -> None:
    """What is directly in one folder, a folder counting as one."""
    found = [circle for folder in folders() if rooms(folder) for circle in circles(room_graph(folder))]
    none_of(told(found, KNOWN_ROOM_CIRCLES), PRINTED_BY)


def test_every_folder_has_its_floor() -> None:
    """FLOORS knows exactly the folders that there are."""
    declared = {f"{above}.{room}" for above, floors in FLOORS.items() for room in " ".join(floors).split()}
    there = {room for folder in folders() for room in rooms(folder)}
    none_of([f"{each}: not in FLOORS" for each in there - declared])
    none_of([f"{each}: in FLOORS, but not there" for each in declared - there])


def test_no_import_goes_up_a_floor() -> None:
    """Nor to another folder of the same floor."""
    upward = set()
    for above, floors in FLOORS.items():
        height = {f"{above}.{room}": level for level, floor in enumerate(floors) for room in floor.split()}
        for importer, target in arrows(room_graph(above), height):
            if height[target] >= height[importer]:
                upward.add(f"{importer} -> {target}")
    none_of(shrinking(upward, KNOWN_UPWARD), PRINTED_BY)


def test_a_circle_is_found() -> None:
    chain = {"a": {"b"}, "b": {"c"}, "c": {"b", "d"}, "d": set(), "e": {"a"}}
    graph = {name: frozenset(targets) for name, targets in chain.items()}
    assert circles(graph) == [frozenset("bc")]
    assert arrows(graph, "ab") == {("a", "b")}
    assert told(circles(graph), []) == ["a circle: b c"]
    assert told(circles(graph), [{"b", "c", "d"}]) == []
    assert told([], [{"b", "c"}]) == ["solved, take it off the list: b c"]
    assert shrinking(["new"], ["old"]) == ["new", "old: solved, take it off the list"]


# -- what must not be in here ------------------------------------------------------------------------------


def test_one_file_imports_pysyncobj() -> None:
    users = [
        name for name, path in modules().items() if any(is_in(each, "pysyncobj") for each in imported(path))
    ]
    assert users == ["namesrv.plugins.controller.replicator"]


def test_no_pickle() -> None:
    unsafe = {"pickle", "marshal", "shelve", "dill"}
    none_of(
        name for name, path in modules().items() if unsafe & {each.split(".")[0] for each in imported(path)}
    )


def test_lock_files_name_no_registry() -> None:
    locks = sorted((ROOT / "requirements").glob("*.txt"))
    assert locks
    wrong = [
        lock.name for lock in locks if "://" in lock.read_text() or "--hash=sha256:" not in lock.read_text()
    ]
    none_of(wrong)


def test_versions_are_pinned_where_it_matters() -> None:
    assert '"pysyncobj==0.3.17"' in (ROOT / "pyproject.toml").read_text()


def test_records_of_servers_are_structs() -> None:
    """A msgspec.Struct takes 0.01 ms to make, a dataclass 0.4, and a server makes some hundred before it is
    ready. Exempt are dataclasses that exclude a field from repr, eq or init, those with a base, and the
    compiled ones; keelmq.client has dataclasses, because its users know how to handle them."""
    wrong = []
    for name, path in modules().items():
        if name.split(".")[0] not in {"broker", "namesrv", "keelmq"} or name.startswith("keelmq.client."):
            continue
        classes = [node for node in ast.walk(tree_of(path)) if isinstance(node, ast.ClassDef)]
        for node in classes:
            fields = [each.value for each in node.body if isinstance(each, ast.AnnAssign)]
            options = {each.arg for call in fields if isinstance(call, ast.Call) for each in call.keywords}
            is_exempt = (
                node.bases or path.with_suffix(".pxd").exists() or options & {"repr", "compare", "init"}
            )
            if not is_exempt and any("dataclass" in ast.unparse(each) for each in node.decorator_list):
                wrong.append(f"{name}: {node.name}")
    none_of(wrong, "Make them msgspec.Structs.")


# -- sizes and docstrings ----------------------------------------------------------------------------------


def test_modules_are_short() -> None:
    lines = {name: len(path.read_text().splitlines()) for name, path in modules().items()}
    wrong = [name for name, count in lines.items() if count > MODULE_LINES_MAX]
    none_of(shrinking(wrong, KNOWN_LONG), f"At most {MODULE_LINES_MAX} lines.")
    none_of(name for name in KNOWN_LONG if lines[name] > KNOWN_LONG_LINES_MAX)


def test_folders_are_small() -> None:
    counts = dict.fromkeys(folders(), 0)
    for path in modules().values():
        if path.name != "__init__.py":
            counts[".".join(path.relative_to(ROOT).parts[:-1])] += 1
    wrong = [folder for folder, count in counts.items() if count > FOLDER_MODULES_MAX]
    none_of(shrinking(wrong, KNOWN_FULL), f"At most {FOLDER_MODULES_MAX} modules.")


def test_functions_are_short() -> None:
    wrong = []
    for name, path in modules().items():
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                if lines > FUNCTION_LINES_MAX:
                    wrong.append(f"{name}: {node.name} has {lines} lines")
    none_of(wrong)


def test_a_module_says_what_it_is() -> None:
    silent = [
        name
        for name, path in modules().items()
        if path.name != "__init__.py" and not ast.get_docstring(tree_of(path))
    ]
    none_of(silent)


# -- tests -------------------------------------------------------------------------------------------------


def sleeps(tree: ast.AST, *, in_loop: bool = False) -> Iterator[int]:
    """Lines of calls of `sleep` that no loop asks again after; sleep(0) is a turn of the event loop."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "sleep":
            is_turn = isinstance(node.args[0], ast.Constant) and node.args[0].value == 0
            if not (in_loop or is_turn):
                yield node.lineno
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from sleeps(node)
        else:
            yield from sleeps(node, in_loop=in_loop or isinstance(node, ast.While | ast.For | ast.AsyncFor))


def test_tests_never_sleep() -> None:
    """Virtual time (tests/sim), or a condition with a deadline: a test that waits looks again and again."""
    pattern = re.compile(r"\btime\.sleep\(")
    wrong = []
    for path in (ROOT / "tests").rglob("test_*.py"):
        text = path.read_text()
        if path == Path(__file__) or "sleep" not in text:
            continue
        name = str(path.relative_to(ROOT))
        wrong += [f"{name}: time.sleep" for _ in pattern.findall(text)]
        if "sim" not in path.parts:
            wrong += [f"{name}:{line}: sleep" for line in sleeps(ast.parse(text))]
    none_of(wrong)


def test_a_sleep_is_found() -> None:
    count = {
        "async def test():\n    await asyncio.sleep(0.2)": 1,
        "while waits():\n    async def later():\n        await asyncio.sleep(0.2)": 1,
        "async def test():\n    while waits():\n        await asyncio.sleep(0.01)": 0,
        "async def test():\n    await asyncio.sleep(0)": 0,
    }
    assert {text: len(list(sleeps(ast.parse(text)))) for text in count} == count


KNOWN_PRIVATE: set[str] = {
    "bench/controller_node.py _core",
    "bench/telemetry.py _role_tasks",
    "fuzz/targets.py _registrations",
    "fuzz/test_frames.py _keep",
    "fuzz/test_leaks.py _keys_of_connection",
    "fuzz/test_leaks.py _server",
    "property/test_inner_batches.py _flusher",
    "sim/control/mutants.py _notifier",
    "sim/control/mutants.py _proposer",
    "sim/control/node.py _wall_clock",
    "sim/raft/mutants.py _end",
    "sim/raft/mutants.py _rewrite",
    "sim/raft/mutants.py _rewrite_due",
    "sim/raft/mutants.py _set_epoch",
    "sim/raft/mutants.py _write",
    "sim/raft/mutants.py _written",
    "sim/raft/process.py _claiming",
    "sim/test_sim.py _update_others",
    "unit/broker/admin/test_broker_http.py _is_full",
    "unit/broker/admin/test_broker_http.py _usage",
    "unit/broker/app/test_stop_steps.py _server",
    "unit/keelmq/client/consumer/test_group_member.py _heartbeat",
    "unit/keelmq/client/consumer/test_group_member.py _rebalance",
    "unit/keelmq/client/consumer/test_group_member.py _wanted",
    "unit/keelmq/client/test_blocking_client.py _check",
    "unit/keelmq/client/test_blocking_client.py _open_client",
    "unit/keelmq/client/test_blocking_client.py _run",
    "unit/keelmq/client/test_blocking_client.py _started",
    "unit/keelmq/remoting/test_remoting_client.py _opaques",
    "unit/keelmq/remoting/test_telemetry_writer.py _job",
    "unit/keelmq/remoting/test_telemetry_writer.py _loop",
    "unit/namesrv/plugins/controller/raft/test_raft_addresses.py _asking",
    "unit/namesrv/plugins/controller/test_controller_members.py _started",
    "unit/namesrv/plugins/controller/test_controller_persistent_map.py _shards",
    "unit/namesrv/plugins/controller/test_controller_telemetry.py _views",
    "unit/namesrv/test_namesrv_http.py _bind_http",
    "unit/namesrv/test_namesrv_requests.py _next_scan_ms",
}
"""File and name: uses of private names of ours that are left. The mutants of tests/sim, which break a program
on purpose, need theirs."""
KNOWN_PRIVATE_LINES_MAX = 35


@pytest.mark.slow
def test_tests_use_public_names() -> None:
    """What only a test may do is in tests/support/reach_in.py; the rest is seen from outside."""
    uses = list(private_names.uses())
    wrong = {f"{path.relative_to('tests')} {name}" for path, _, name in uses}
    none_of(shrinking(wrong, KNOWN_PRIVATE), "`python -m tests.support.private_names` prints the lines.")
    lines = len({(path, line) for path, line, _ in uses})
    assert lines == KNOWN_PRIVATE_LINES_MAX, f"{lines} lines, not {KNOWN_PRIVATE_LINES_MAX}: it only shrinks"


def test_ports_that_are_known_before_their_bind_come_from_one_place() -> None:
    """A port that the system chose for a socket that was closed again may be anybody's a moment later."""
    allowed = ROOT / "tests" / "support" / "ports.py"
    wrong = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in sorted((ROOT / "tests").rglob("*.py"))
        if "free_port" in path.read_text()
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.name.strip("_").startswith("free_port")
        and path != allowed
    ]
    none_of(wrong, "Use tests.support.ports.")


@pytest.mark.parametrize("mark", ["spark", "cluster"])
def test_tests_with_a_phase_of_their_own_are_in_its_folders(mark: str) -> None:
    """./test looks for them nowhere else."""
    lines = [
        each
        for each in (ROOT / "test").read_text().splitlines()
        if re.search(rf'\btests .*-m "\(\$(processes|selection)\) and {mark}\b', each)
    ]
    folders_of_phase = {folder for line in lines for folder in re.findall(r"\btests/(\w+)", line)}
    marked = [
        path
        for path in sorted((ROOT / "tests").rglob("test_*.py"))
        if f"pytest.mark.{mark}" in path.read_text()
    ]
    assert marked and folders_of_phase
    wrong = [
        str(path.relative_to(ROOT))
        for path in marked
        if path.name != "test_house.py" and path.relative_to(ROOT / "tests").parts[0] not in folders_of_phase
    ]
    none_of(wrong, f"./test has the folders {sorted(folders_of_phase)} for the mark {mark}.")


def test_a_phase_of_every_run_has_a_test() -> None:
    """pytest ends with an error if none is selected, and the phases behind it do not run. Without --ci, those
    of processes run what is marked smoke."""
    text = (ROOT / "test").read_text().replace("\\\n", "")
    phases = re.findall(r'^tests .*-m "\(\$processes\) and (\w+)[^"]*"(.*)$', text, re.MULTILINE)
    assert phases
    for mark, where in phases:
        files = [
            path for each in re.findall(r"tests/\w+", where) for path in (ROOT / each).rglob("test_*.py")
        ]
        marks = (f"pytest.mark.{mark}", "pytest.mark.smoke")
        assert any(all(each in path.read_text() for each in marks) for path in files), (mark, where)


def test_a_private_name_is_found() -> None:
    count = {
        "store._queued": ["_queued"],
        "store._queued = 1": ["_queued"],
        "self._queued, cls._queued = store.queued, 2": [],
        "monkeypatch.setattr(store, '_queued', 1)": ["_queued"],
        "monkeypatch.setattr('broker.store._queued', 1)": ["_queued"],
        "from broker.store.message_store import _NEVER, _queued": ["_queued"],
        "from tests.support.items import _containers": [],
        "store.__dict__": [],
    }
    found = {text: [name for _, name in private_names.used(ast.parse(text))] for text in count}
    assert found == count
    defined = ast.parse("_a = 1\nclass _b:\n    _c: int\n    def _d(self):\n        self._e = other._f")
    assert sorted(private_names.defined(defined)) == ["_a", "_b", "_c", "_d", "_e"]


PROMISES = {f"S{number}" for number in range(1, 15)}


def promises_of(tree: ast.AST) -> Iterator[str]:
    """What the file's marks `pytest.mark.promise(...)` name."""
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr == "promise"
        ):
            yield from (each.value for each in node.args if isinstance(each, ast.Constant))


def test_every_promise_has_a_test() -> None:
    """And a row in docs/testing.md, which names files with such tests."""
    shown: dict[str, set[str]] = {}
    for path in (ROOT / "tests").rglob("test_*.py"):
        text = path.read_text()
        for name in promises_of(ast.parse(text)) if "mark.promise" in text else ():
            shown.setdefault(name, set()).add(str(path.relative_to(ROOT)))
    none_of([f"{each}: no test is marked with it" for each in PROMISES - set(shown)])
    none_of([f"{each}: no promise" for each in set(shown) - PROMISES])
    table = re.findall(
        r"^\| (S\d+) \|.*\| ([^|]+) \|$", (ROOT / "docs" / "testing.md").read_text(), re.MULTILINE
    )
    named = {name: set(re.findall(r"`([^`]+\.py)`", files)) for name, files in table}
    none_of([f"{name}: not in the table" for name in PROMISES - set(named)])
    none_of(
        f"{name}: no test in {file} is marked with it"
        for name, files in named.items()
        for file in files
        if f"tests/{file}" not in shown.get(name, ())
    )

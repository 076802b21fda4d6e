"""What every engine promises: quiet, in UTC, closed to the network, and nothing left of it in our process."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from analytics.engine.classic import is_submitted
from analytics.engine.errors import spark_in_one_line
from analytics.engine.sessions import EMBEDDED, has_streams, spark_engine
from analytics.errors import AnalyticsError
from tests.spark.engine import ENGINE

pytestmark = pytest.mark.spark

LISTEN = "0A"
ROOT = Path(__file__).resolve().parent.parent.parent
of_embedded = pytest.mark.skipif(ENGINE != EMBEDDED, reason="of the embedded engine")


def test_settings(spark: SparkSession) -> None:
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert spark.sql("SELECT CAST('x' AS int)").collect() == [(None,)], "ANSI is off"


def test_streams_are_told(spark: SparkSession) -> None:
    assert has_streams(spark) is (ENGINE != EMBEDDED)


def test_rows_are_kept(spark: SparkSession, tmp_path: Path) -> None:
    """localCheckpoint() cuts a plan on each engine: afterwards the rows need no source."""
    pq.write_table(pa.table({"a": [1, 2]}), tmp_path / "a.parquet")
    rows = spark.read.parquet(f"file://{tmp_path}/a.parquet").localCheckpoint()
    (tmp_path / "a.parquet").unlink()
    assert rows.count() == 2


def test_a_session_that_is_there_decides(spark: SparkSession) -> None:
    """As under spark-submit: the same session, its settings afterwards, and it is not stopped."""
    assert is_submitted()
    spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    partitions = spark.conf.get("spark.sql.shuffle.partitions", None)
    said: list[str] = []
    with spark_engine(conf={"spark.sql.shuffle.partitions": "3"}, progress=said.append) as ours:
        assert ours is spark
        assert ours.conf.get("spark.sql.session.timeZone") == "UTC"
        assert ours.conf.get("spark.sql.shuffle.partitions") == "3"
    assert spark.conf.get("spark.sql.session.timeZone") == "Asia/Tokyo"
    assert spark.conf.get("spark.sql.shuffle.partitions", None) == partitions
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    assert said[0].startswith("the Spark session that is there, ")
    assert spark.range(3).count() == 3


@pytest.mark.parametrize(
    ("master", "conf", "message"),
    [
        ("local[1]", {}, "give --master to spark-submit"),
        (None, {"spark.driver.memory": "9g"}, "spark.driver.memory"),
    ],
)
def test_what_a_session_that_is_there_cannot_become(
    spark: SparkSession, master: str | None, conf: dict[str, str], message: str
) -> None:
    with pytest.raises(AnalyticsError, match=message), spark_engine(master=master, conf=conf):
        pass
    assert spark.range(3).count() == 3


def damaged_page(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[:60] + bytes(255 - each for each in content[60:400]) + content[400:])


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (lambda path: path.write_bytes(path.read_bytes()[:2_000]), "is damaged: "),
        (damaged_page, "is damaged: "),
    ],
    ids=["short", "page"],
)
def test_a_damaged_part_is_named(spark: SparkSession, tmp_path: Path, damage: Any, told: str) -> None:
    parts = [tmp_path / "a.parquet", tmp_path / "b.parquet"]
    for part in parts:
        pq.write_table(pa.table({"a": range(1_000)}), part)
    damage(parts[1])
    names = [f"file://{part}" for part in parts]
    with pytest.raises(AnalyticsError) as raised, spark_in_one_line(lambda: names):
        spark.read.schema("a bigint").parquet(*names).agg({"a": "sum"}).collect()
    assert str(raised.value).startswith(f"file://{parts[1]} {told}")
    assert "\n" not in str(raised.value)


def test_an_error_of_a_python_function_is_one_line(spark: SparkSession) -> None:
    def fails(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        raise AnalyticsError("compacted/ha_sample/part-1 has no column ts")
        yield from batches

    with pytest.raises(AnalyticsError) as raised, spark_in_one_line():
        spark.range(3).mapInArrow(fails, "id bigint").collect()
    assert "compacted/ha_sample/part-1 has no column ts" in str(raised.value)
    assert "\n" not in str(raised.value) and len(str(raised.value)) < 300


@pytest.mark.usefixtures("spark")
def test_our_environment_is_as_before() -> None:
    names = {name for name in os.environ if name.startswith(("SAIL_", "RUST_LOG"))}
    assert not names and "SPARK_LOCAL_IP" not in os.environ


@of_embedded
def test_the_embedded_one_leaves_nothing(tmp_path: Path) -> None:
    """Neither a file, nor a line of its log, nor a traceback, however the program ends."""
    program = tmp_path / "program.py"
    program.write_text("""
import sys
from analytics.engine.sessions import spark_engine
with spark_engine() as spark:
    print(spark.range(9).localCheckpoint().count(), flush=True)
    if sys.argv[1:]: raise SystemExit(sys.argv[1])
""")
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    environ = os.environ | {"PYTHONPATH": str(ROOT), "TMPDIR": str(scratch)}
    for more, code_of, said in (([], 0, ""), (["that is all"], 1, "that is all\n")):
        done = subprocess.run(
            [sys.executable, program, *more], env=environ, capture_output=True, text=True, check=False
        )
        assert (done.stdout, done.stderr, done.returncode) == ("9\n", said, code_of)
        assert list(scratch.iterdir()) == []


@of_embedded
def test_a_server_that_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before and after the first request, in one line, and without the token of the URL."""
    from pysail.spark import SparkConnectServer

    monkeypatch.setattr("analytics.engine.sessions.FIRST_CONTACT_RETRIES", 1)
    monkeypatch.setattr("analytics.engine.sessions.RETRIES", 1)
    server = SparkConnectServer("127.0.0.1", 0)
    server.start(background=True)
    remote = f"sc://127.0.0.1:{server.listening_address[1]}/;x-token=secret"
    told: list[str] = []
    with (
        pytest.raises(AnalyticsError, match="the server is not reached, or has ended: ") as raised,
        spark_engine(remote=remote, progress=told.append) as far,
        spark_in_one_line(),
    ):
        assert far.range(3).count() == 3
        server.stop()
        far.range(3).count()
    assert "secret" not in f"{told} {raised.value}" and told[0].startswith("Spark Connect at sc://127.0.0.1:")
    with (
        pytest.raises(AnalyticsError, match="the server is not reached") as raised,
        spark_engine(remote=remote),
    ):
        pass
    assert str(raised.value).startswith("--remote sc://127.0.0.1:")
    assert "secret" not in str(raised.value) and "\n" not in str(raised.value)


@of_embedded
@pytest.mark.parametrize(
    ("conf", "message"),
    [
        ({"spark.executor.memory": "4g"}, "--conf spark.executor.memory: this engine has no such setting"),
        ({"spark.driver.memory": "much"}, "--conf spark.driver.memory=much: give a size like 512m or 4g"),
    ],
)
def test_settings_that_the_embedded_one_has_not(conf: dict[str, str], message: str) -> None:
    with pytest.raises(AnalyticsError, match=message), spark_engine(EMBEDDED, conf=conf):
        pass


@of_embedded
def test_spark_where_only_its_client_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("analytics.engine.sessions.is_submitted", lambda: False)
    with (
        pytest.raises(AnalyticsError, match=r"pip install 'keelmq\[spark\]'"),
        spark_engine(master="local[2]"),
    ):
        pass


@pytest.mark.usefixtures("spark")
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_it_listens_on_loopback_only() -> None:
    processes = family(os.getpid())
    ours = {link for pid in processes for link in sockets(pid)}
    addresses = {address for inode, address in listening() if inode in ours}
    assert addresses
    assert all(is_loopback(address) for address in addresses), addresses


def family(parent: int) -> set[int]:
    """The process and its children, Spark's Java among them."""
    tasks = f"/proc/{parent}/task"
    lines = [Path(tasks, task, "children").read_text() for task in os.listdir(tasks)]
    return {parent, *(int(child) for line in lines for child in line.split())}


def sockets(pid: int) -> set[str]:
    found = set()
    for link in Path(f"/proc/{pid}/fd").iterdir():
        try:
            found.add(os.readlink(link))
        except FileNotFoundError:  # closed meanwhile
            continue
    return {target.removeprefix("socket:[").removesuffix("]") for target in found if "socket:[" in target}


def listening() -> list[tuple[str, str]]:
    """(inode, address in hexadecimal)."""
    rows = [
        line.split()
        for table in ("/proc/net/tcp", "/proc/net/tcp6")
        for line in Path(table).read_text().splitlines()[1:]
    ]
    return [(row[9], row[1].split(":")[0]) for row in rows if row[3] == LISTEN]


def is_loopback(address: str) -> bool:
    """127.0.0.1, the same inside IPv6, ::1; /proc writes words of 4 bytes in the order of the machine."""
    return address in {"0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000"}


@of_embedded
def test_a_program_without_a_file(tmp_path: Path) -> None:
    """`python -c`, where PySpark's client would end the process when it is imported."""
    code = (
        "from analytics.engine.sessions import spark_engine\n"
        "with spark_engine() as s: print(s.range(9).count())"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("9\n", "")

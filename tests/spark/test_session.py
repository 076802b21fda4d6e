"""What a session promises: quiet, in UTC, closed to the network, and nothing left of it in our process."""

import os
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from analytics.errors import AnalyticsError
from analytics.session import is_submitted, spark_session

pytestmark = pytest.mark.spark

LISTEN = "0A"


def test_settings(spark: SparkSession) -> None:
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert spark.conf.get("spark.ui.enabled") == "false"
    assert spark.sparkContext.uiWebUrl is None
    assert spark.sparkContext.pythonExec == sys.executable


def test_a_session_that_is_there_decides(spark: SparkSession) -> None:
    """As under spark-submit: the same session, its master, its settings afterwards, and it is not stopped."""
    assert is_submitted()
    spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    said: list[str] = []
    with spark_session(quick=False, conf={"spark.sql.shuffle.partitions": "3"}, progress=said.append) as ours:
        assert ours is spark
        assert ours.conf.get("spark.sql.session.timeZone") == "UTC"
        assert ours.conf.get("spark.sql.shuffle.partitions") == "3"
        assert ours.conf.get("spark.master") == "local[*]"
    assert spark.conf.get("spark.sql.session.timeZone") == "Asia/Tokyo"
    assert spark.conf.get("spark.sql.shuffle.partitions") == "1"
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    assert said == ["the Spark session that is there, master local[*]"]
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
    with pytest.raises(AnalyticsError, match=message), spark_session(quick=True, master=master, conf=conf):
        pass
    assert spark.range(3).count() == 3


@pytest.mark.usefixtures("spark")
def test_our_environment_is_as_before() -> None:
    assert "keelmq" not in os.environ.get("JAVA_HOME", "")
    assert "SPARK_LOCAL_IP" not in os.environ


@pytest.mark.usefixtures("spark")
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_it_listens_on_loopback_only() -> None:
    processes = family(os.getpid())
    assert len(processes) > 1
    ours = {link for pid in processes for link in sockets(pid)}
    addresses = {address for inode, address in listening() if inode in ours}
    assert addresses
    assert all(is_loopback(address) for address in addresses), addresses


def family(parent: int) -> set[int]:
    """The process and its children: Spark's Java."""
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

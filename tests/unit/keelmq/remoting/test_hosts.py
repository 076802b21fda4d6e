"""Hosts in records: IPv4 and IPv6 of producers and brokers, each with its own width."""

from pathlib import Path

import pytest

from broker.app.assembly import store_host
from broker.message.record import BORN_HOST_V6, STORE_HOST_V6, decode, host_bytes, offset_message_id
from broker.store.message_store import StoreConfig
from broker.store.offline import offline_store
from broker.store.querying import earliest_time, record_at
from keelmq.remoting.addresses import host_and_port_bytes, is_loopback
from tests.support.store_parts import FILE_BYTES, QUEUE_FILE_BYTES, TOPIC, bodies, crash

V4, V6 = host_bytes("10.0.0.1", 4_660), host_bytes("fd00::1", 4_660)


@pytest.mark.parametrize(
    ("host", "wanted"),
    [
        ("10.0.0.1", V4),
        ("::ffff:10.0.0.1", V4),
        ("fd00::1", V6),
        ("fd00::1%eth0", V6),
        ("http", bytes(4) + V4[4:]),
    ],
)
def test_a_producers_host(host: str, wanted: bytes) -> None:
    """store.md pitfall 24: scoped literals."""
    assert host_and_port_bytes(host, 4_660) == wanted


def test_a_brokers_host() -> None:
    assert store_host("127.0.0.1", 10_911) == host_bytes("127.0.0.1", 10_911)
    assert store_host("[::1]", 10_911) == store_host("::1", 10_911) == host_bytes("::1", 10_911)
    assert store_host("no such host", 10_911) == bytes(4) + (10_911).to_bytes(4, "big")
    assert len(offset_message_id(host_bytes("::1", 10_911), 0)) == 56


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "::ffff:127.0.0.1", "localhost"])
def test_hosts_that_only_this_machine_reaches(host: str) -> None:
    """On a port of both families a client of this machine is ::ffff:127.0.0.1."""
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["10.0.0.1", "0.0.0.0", "::", "::ffff:10.0.0.1", "fe80::1%lo", "", "local"])
def test_hosts_that_others_reach(host: str) -> None:
    assert not is_loopback(host)


def test_a_name_that_has_no_address(caplog: pytest.LogCaptureFixture) -> None:
    assert store_host("nowhere.invalid", 10911) == bytes(6) + b"\x2a\x9f"
    assert "brokerIP1: nowhere.invalid cannot be resolved on this host" in caplog.text


@pytest.mark.parametrize("store", [V4, V6])
@pytest.mark.parametrize("born", [V4, V6])
def test_all_widths_are_stored_read_and_recovered(tmp_path: Path, born: bytes, store: bytes) -> None:
    """store.md pitfall 9: the bits tell the widths, and a client's own bits never count."""
    config = StoreConfig(
        tmp_path, FILE_BYTES, QUEUE_FILE_BYTES, store_host=store, index_slots=10, index_entries=100
    )
    made = offline_store(config)
    made.load()
    made.become_master()
    for number in range(60):
        sys_flag = BORN_HOST_V6 if born == V4 else 0
        made.put(TOPIC, 0, b"%d" % number, b"TAGS\x01a\x02", 0, sys_flag, 1, born, 0, 97, 5_000 + number)
    made.set_confirm_offset(made.commit_log.max_offset)
    crash(made)
    made = offline_store(config)
    made.load()
    assert bodies(made) == [b"%d" % number for number in range(60)]
    assert earliest_time(made, "TopicA", 0) == 5_000
    view = record_at(made, 0)
    assert view is not None
    record = decode(view)
    assert (record.born_host, record.store_host) == (born, store)
    assert bool(record.sys_flag & BORN_HOST_V6) == (born == V6)
    assert bool(record.sys_flag & STORE_HOST_V6) == (store == V6)
    made.close()

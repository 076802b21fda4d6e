"""Standard and legacy JSON of a name server (namesrv pitfall 15: #4473, #4432)."""

import json

from hypothesis import given
from hypothesis import strategies as st

from keelmq.remoting.body import body_bytes
from keelmq.remoting.lenient_json import load_lenient
from keelmq.remoting.operations.route import BrokerData, ClusterInfo
from namesrv.core.json_dialect import escaped_json, legacy_json

NAMES = st.text(st.sampled_from('a7"\\{}:,é😀 '), min_size=1, max_size=6)


def test_only_the_maps_with_number_keys_get_bare_keys() -> None:
    """A cluster or broker whose name is a number stays text: a reader of text keys stops at a bare one."""
    data = BrokerData(cluster="1", broker_name="7", broker_addrs={0: "h:1", 12: 'a"b\\{"0":'})
    info = ClusterInfo(broker_addr_table={"7": data}, cluster_addr_table={"1": ["7"]})
    assert legacy_json(body_bytes(info)) == (
        b'{"brokerAddrTable":{"7":{"brokerAddrs":{0:"h:1",12:"a\\"b\\\\{\\"0\\":"},"brokerName":"7",'
        b'"cluster":"1","enableActingMaster":false}},"clusterAddrTable":{"1":["7"]}}'
    )


def test_the_ids_of_a_static_topic_are_bare_too() -> None:
    assert legacy_json(b'{"currIdMap":{"0":3,"-1":4},"topic":"currIdMap"}') == (
        b'{"currIdMap":{0:3,-1:4},"topic":"currIdMap"}'
    )
    assert legacy_json(b'{"brokerAddrs":{}}') == b'{"brokerAddrs":{}}'


def test_standard_json_is_ascii() -> None:
    assert escaped_json('{"a":"é😀b"}'.encode()) == b'{"a":"\\u00e9\\ud83d\\ude00b"}'
    assert escaped_json(b'{"a":1}') == b'{"a":1}'


@given(st.dictionaries(NAMES, st.dictionaries(st.integers(-3, 12), NAMES, max_size=3), max_size=3))
def test_both_dialects_read_as_what_was_written(table: dict[str, dict[int, str]]) -> None:
    info = ClusterInfo(
        broker_addr_table={
            name: BrokerData(cluster=name, broker_name=name, broker_addrs=addrs)
            for name, addrs in table.items()
        }
    )
    raw = body_bytes(info)
    assert load_lenient(legacy_json(raw)) == json.loads(raw) == json.loads(escaped_json(raw))

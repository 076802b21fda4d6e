"""Which requests are recorded, and that nothing of them is a secret."""

import importlib
import json
import pkgutil
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import keelmq.remoting.operations
from keelmq.remoting.codes import RequestCode as Code
from keelmq.remoting.operation import Operation
from keelmq.security.core.audited import (
    DATA_PATH,
    MASK,
    READS,
    RESOURCE_FIELDS,
    Kind,
    Outcome,
    changes_of,
    fields_of,
    is_secret_key,
    is_without_effect,
    kind_of,
    outcome_of,
    remark_of,
    resources_of,
)
from keelmq.security.core.contexts import Role
from keelmq.security.core.rules import RULES, rule_of

KEPT_OUT = {
    "defaultTopic", "force", "invokeTime", "value", "jstackEnable", "transactionId",
    "tranStateTableOffset", "commitLogOffset", "offsetMsgId", "bname", "registerCheckCode",
    "haServerAddr", "enableActingMaster", "heartbeatTimeoutMillis", "compressed", "bodyCrc32",
    "maxOffset", "confirmOffset", "heartbeatTimeoutMills", "electionPriority", "handsOver",
    "minInSyncReplicas", "haBrokerAddr", "masterFlushOffset", "controllers", "waitMillis",
    "sendTimeMillis", "forwardsSends", "allAckInSyncStateSet", "silentMasterEpoch",
    "damagedBytes", "digest", "partNumber", "partCount", "asksForParts",
    "needsRoom", "diskFull", "takesParts", "unfitBrokerId", "refusedMasterEpoch",
    "clientAddress", "accessKey", "signature", "signedText", "judgeOnly",
}  # fmt: skip
"""Header fields of acts and of members that say nothing about a resource; `value` is one of `changes`."""


def operations() -> dict[int, Operation[Any, Any]]:
    folder = keelmq.remoting.operations
    names = [each.name for each in pkgutil.iter_modules(folder.__path__)]
    modules = [importlib.import_module(f"{folder.__name__}.{name}") for name in names]
    found = [each for module in modules for each in vars(module).values() if isinstance(each, Operation)]
    return {each.code: each for each in found}


def test_what_is_an_act() -> None:
    """Everything that changes something, and no code of the data path or of members."""
    acts = {code for code in RULES if kind_of(code) is Kind.ACT}
    assert acts >= {
        17,
        18,
        25,
        100,
        102,
        200,
        205,
        207,
        215,
        216,
        222,
        225,
        306,
        314,
        318,
        327,
        329,
        353,
        401,
    }
    assert acts >= {1002, 1009, 1011, 3001, 3002, 3003, 3006, 3007, 3008, 29013, 29014, 29021, 29022, 29023}
    assert not acts & {10, 11, 14, 15, 30, 34, 36, 37, 38, 41, 105, 310, 320, 200050, 200051}
    assert not acts & {103, 104, 904, 906, 1001, 1003, 1008, 1012, 1013, 29001, 29005}
    assert not acts & {3004, 3005, 3009, 3010}, "the console asks for users again and again"
    assert kind_of(54_321) is Kind.ACT


def test_the_data_path_has_no_code_that_only_reads_or_administers() -> None:
    assert {rule_of(code).role for code in DATA_PATH} == {Role.OPERATE}


def test_every_code_with_a_higher_role_than_reading_is_of_one_kind() -> None:
    for code, rule in RULES.items():
        if rule.role is Role.ADMINISTER:
            expected = Kind.ROUTINE if rule.members_only else Kind.DATA if code in READS else Kind.ACT
            assert kind_of(code) is expected, code
        elif rule.role is Role.OPERATE:
            assert kind_of(code) is (Kind.DATA if code in DATA_PATH else Kind.ACT), code


def test_each_field_of_a_recorded_header_is_written_or_kept_out_on_purpose() -> None:
    """A new field of an administrative request has to be judged here."""
    fields = {
        field.alias or name
        for code, operation in operations().items()
        if kind_of(code) is not Kind.DATA
        for name, field in operation.request.model_fields.items()
    }
    clients = {name for code in (39, 326) for name in _names(operations()[code])}  # sent to clients only
    assert fields - RESOURCE_FIELDS - clients <= KEPT_OUT
    assert not RESOURCE_FIELDS & KEPT_OUT


def _names(operation: Operation[Any, Any]) -> set[str]:
    return {field.alias or name for name, field in operation.request.model_fields.items()}


def test_no_resource_field_is_called_a_secret() -> None:
    assert not [name for name in RESOURCE_FIELDS if is_secret_key(name)]


@settings(deadline=None)
@given(
    code=st.sampled_from(sorted(RULES)),
    names=st.sets(st.text(min_size=1, max_size=20), max_size=10),
    body=st.sampled_from(
        [
            b'{"username":"u","password":"SECRET","userType":"Super"}',
            b'{"password":"SECRET"',
            b"controllerRaftSecret=SECRET\ninitAuthenticationUser={SECRET}\n",
            b"innerClientAuthenticationCredentials SECRET",
        ]
    ),
)
def test_no_code_shows_a_secret(code: int, names: set[str], body: bytes) -> None:
    fields = dict.fromkeys((*names - RESOURCE_FIELDS, "Signature", "SecurityToken", "password"), "SECRET")
    made = [fields_of(fields), resources_of(code, fields, body)]
    assert "SECRET" not in json.dumps(made)


@pytest.mark.parametrize(
    ("code", "remark", "body", "said"),
    [
        (
            Code.UPDATE_BROKER_CONFIG,
            "the request line 2: 'initAuthenticationUser {\"a\":1}' is not key=value",
            b"x=1\ninitAuthenticationUser {}",
            "the request line 2 is not key=value",
        ),
        (
            Code.UPDATE_NAMESRV_CONFIG,
            "innerClientAuthenticationCredentials = 'hunter2' in the request: no JSON",
            b"innerClientAuthenticationCredentials=hunter2\n",
            f"innerClientAuthenticationCredentials = '{MASK}' in the request: no JSON",
        ),
        (
            Code.UPDATE_BROKER_CONFIG,
            "brokerPermission = '9' in the request: it is 2, 4 or 6",
            b"brokerPermission=9",
            "brokerPermission = '9' in the request: it is 2, 4 or 6",
        ),
        (
            Code.AUTH_CREATE_USER,
            "the password hunter2 is too short",
            b'{"username":"u","password":"hunter2"}',
            f"the password {MASK} is too short",
        ),
        (Code.AUTH_UPDATE_USER, "no JSON", b"{", "no JSON"),
        (Code.AUTH_UPDATE_USER, "no object", b"[1]", "no object"),
    ],
)
def test_remarks_do_not_quote_secrets(code: int, remark: str, body: bytes, said: str) -> None:
    assert remark_of(code, remark, body) == said


def test_long_bodies_are_not_looked_into() -> None:
    """An anonymous client's request of 16 MiB must not stop the event loop."""
    body = b'{"groupName":"g","x":"' + b"x" * 70_000 + b'"}'
    assert resources_of(200, {}, body) == []
    assert resources_of(17, {"topic": "t"}, body) == ["Topic:t"]
    assert "too long" in remark_of(Code.UPDATE_BROKER_CONFIG, "SECRET", b"a=SECRET\n" * 10_000)
    assert remark_of(Code.UPDATE_BROKER_CONFIG, "", b"a=SECRET\n" * 10_000) == ""


def test_changes() -> None:
    topics: dict[str, tuple[object, object]] = {f"topic {number}": (None, number) for number in range(150)}
    shown = changes_of(18, topics)
    assert shown["topic 99"] == {"old": None, "new": 99}
    assert "topic 100" not in shown and shown["..."] == {"old": None, "new": "50 more"}
    assert changes_of(25, {"controllerRaftSecret": ("a", "b"), "keyPassword": ("", "b")}) == {
        "controllerRaftSecret": {"old": MASK, "new": MASK},
        "keyPassword": {"old": "", "new": MASK},
    }
    assert changes_of(17, {"topic secret-offers": (None, {"perm": 6, "secretKey": "s"})}) == {
        "topic secret-offers": {"old": None, "new": {"perm": 6, "secretKey": MASK}}
    }
    assert changes_of(205, {"perm": ({"secret-offers": 6}, {"secret-offers": 4})}) == {
        "perm": {"old": {"secret-offers": 6}, "new": {"secret-offers": 4}}
    }
    assert changes_of(3001, {"secretary": (None, {"userType": "Super"})}) == {
        "secretary": {"old": None, "new": {"userType": "Super"}}
    }
    ((_, long),) = changes_of(100, {"value": ("x" * 1_000, {1, 2})}).items()
    assert long == {"old": "x" * 256 + "... (1000 characters)", "new": [1, 2]}
    nested: object = "end"
    for _ in range(50):
        nested = {"in": nested}
    assert len(json.dumps(changes_of(1, {"deep": (None, nested)}))) < 500


def test_outcomes() -> None:
    assert [outcome_of(code) for code in (0, 16, -1, 1, 3)] == [
        Outcome.OK,
        Outcome.REFUSED,
        Outcome.UNKNOWN,
        Outcome.FAILED,
        Outcome.FAILED,
    ]


def test_resources_are_those_of_the_rights() -> None:
    assert resources_of(17, {"topic": "t"}, b"") == ["Topic:t"]
    assert resources_of(200, {}, b'{"groupName":"g"}') == ["Group:g"]
    assert resources_of(200, {}, b"{") == []
    assert resources_of(25, {}, b"x=1") == []


def test_brokers_that_look_for_a_master_are_no_news() -> None:
    assert is_without_effect(1002, {"brokerName": "b"}, {})
    assert is_without_effect(1002, {"designateElect": "true", "dryRun": "true"}, {})
    assert not is_without_effect(1002, {"designateElect": "true"}, {})
    assert not is_without_effect(1002, {}, {"master of b": (None, {})})
    assert not is_without_effect(17, {}, {})

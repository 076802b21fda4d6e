"""Promises with no other home: S6, S12 and S13 of docs/testing.md.

S6: what no majority confirmed is unknown, never a success. S12: the raft port loads no pickle of an anonymous
client. S13: an error says what, where and what to do, and the exit code is right.
"""

import asyncio
import pickle
import re
import subprocess
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from keelmq.remoting.client import RemotingClient
from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.operation import Failed, Ok, Unknown
from keelmq.remoting.operations import controller as wire
from tests.support.admin_parts import DEAD, mqadmin
from tests.support.raft_attackers import Outfit, talk_to
from tests.unit.namesrv.plugins.controller.raft.test_raft_attacks import STOCK_ATTACKS, Touch, stock
from tests.unit.namesrv.plugins.controller.test_controller_group import a_leader
from tests.unit.namesrv.plugins.controller.test_controller_plugin import (
    address_of,
    members,
    plugin_of,
    server,
    until,
)

# -- S6 ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.promise("S6")
async def test_s6_what_no_majority_confirmed_is_no_success(tmp_path: Path) -> None:
    """Two of three controllers stop, and the leader is asked to write: upstream's future has ended, and is
    taken for a success. When they are back, the same request succeeds."""
    configs = members(tmp_path, ["n0", "n1", "n2"])
    header = wire.ApplyBrokerIdRequest(
        cluster_name="C", broker_name="b", applied_broker_id=1, register_check_code="10.0.0.1:1;1"
    )
    async with AsyncExitStack() as stack:
        servers, stops = {}, {}
        for name, config in configs.items():
            stops[name] = await stack.enter_async_context(AsyncExitStack())
            servers[name] = await stops[name].enter_async_context(server(config))
        await until(lambda: a_leader(servers) is not None, "a leader")
        leader = a_leader(servers)
        assert leader is not None
        client = RemotingClient()
        stack.push_async_callback(client.close)

        async def ask(name: str) -> Ok[Any] | Failed | Unknown:
            address = address_of(configs[name])
            return await client.call(address, wire.APPLY_BROKER_ID, header, timeout_ms=15_000)

        others = [name for name in configs if name != leader]
        await asyncio.gather(*(stops[name].aclose() for name in others))
        alone = await ask(leader)
        assert isinstance(alone, Failed), alone
        if alone.code != ResponseCode.CONTROLLER_NOT_LEADER:  # it has stepped down before we asked
            assert alone.code == ResponseCode.SYSTEM_ERROR and "unknown" in (alone.remark or ""), alone
        assert not plugin_of(servers[leader]).machine.state.brokers, "not applied"

        for name in others:
            servers[name] = await stops[name].enter_async_context(server(configs[name]))
        await until(lambda: a_leader(servers) is not None, "a leader again")
        again = a_leader(servers)
        assert again is not None
        outcome = await ask(again)
        assert isinstance(outcome, Ok), outcome
        replicas = plugin_of(servers[again]).machine.state.brokers["b"].replicas
        assert {number: each.check_code for number, each in replicas.items()} == {1: "10.0.0.1:1;1"}


# -- S12 ---------------------------------------------------------------------------------------------------


@pytest.mark.promise("S12")
async def test_s12_the_raft_port_loads_no_pickle_of_an_unverified_peer(
    outfit: Outfit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every attack that works against pysyncobj's own port: nothing is even given to pickle. The members'
    conversation with each other needs it neither."""
    loaded: list[str] = []

    def watched(name: str) -> None:
        real = getattr(pickle, name)

        def load(*args: Any, **kwargs: Any) -> Any:
            loaded.append(name)
            return real(*args, **kwargs)

        monkeypatch.setattr(pickle, name, load)

    for name in ("load", "loads", "_load", "_loads", "Unpickler", "_Unpickler"):
        watched(name)
    group, boom = outfit.group(), tmp_path / "boom"
    async with group:
        leader = await group.active()
        for attack in STOCK_ATTACKS.values():
            async with talk_to(group.members[leader.self_id]) as talk:
                for message in attack(boom):
                    talk.write(stock(message))
                talk.write(bytes(600))  # no shorter than a nonce and a frame
                await talk.until_closed()
        count = len(STOCK_ATTACKS)
        await until(lambda: sum(leader.status()["refusedConnections"].values()) >= count, "all refused")
        assert leader.is_active
    assert loaded == [] and not boom.exists()
    pickle.loads(pickle.dumps(Touch(boom)))
    assert loaded == ["loads"] and boom.exists(), "had it been loaded, we would know"


# -- S13 ---------------------------------------------------------------------------------------------------

COMMANDS = (
    "addWritePerm -b broker-a", "allocateMQ -t T -i 10.0.0.1", "cloneGroupOffset -s G -d H -t T",
    "clusterList",
    "consumerConnection -g G", "consumerProgress", "consumerStatus -g G", "deleteKvConfig -s NS -k key",
    "deleteTopic -t T -c C", "exportConfigs -c C", "exportMetrics -c C", "getBrokerEpoch -b broker-a",
    "getConsumerConfig -g G", "getNamesrvConfig", "producerConnection -g G -t T", "queryMsgByKey -t T -k key",
    "queryMsgTraceById -i id", "resetOffsetByTime -g G -t T -s now", "skipAccumulatedMessage -g G -t T",
    "topicRoute -t T", "wipeWritePerm -b broker-a",
)  # fmt: skip
"""Of those that ask a name server first."""
OF_CONTROLLERS = ("getControllerMetaData", "getControllerConfig", "getElections", "removeController -id n1")


@pytest.mark.promise("S13")
def test_s13_without_an_answer_one_line_says_what_where_and_what_to_do() -> None:
    wrong = []
    for flag, commands in (("-n", COMMANDS), ("-a", OF_CONTROLLERS)):
        for command in commands:
            result = mqadmin(*command.split(), flag, DEAD, "--timeout", "500")
            expected = rf"mqadmin: \w+ at {DEAD}: cannot connect to {DEAD}: .+; check the address, .+\n"
            if result.exit_code != 3 or not re.fullmatch(expected, result.stderr):
                wrong.append((command, result.exit_code, result.stderr))
    assert wrong == []


@pytest.mark.promise("S13")
def test_s13_a_file_with_a_wrong_key_is_refused_with_the_place_and_the_right_word(tmp_path: Path) -> None:
    """Exit code 1, one line, of both programs."""
    path = tmp_path / "wrong.conf"
    path.write_text("listenPrt=9876\n")
    for program in ("namesrv", "broker"):
        command = [sys.executable, "-m", program, "-c", str(path)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
        assert done.returncode == 1, done
        (line,) = done.stderr.splitlines()
        assert str(path) in line and "listenPrt" in line and "listenPort" in line, line

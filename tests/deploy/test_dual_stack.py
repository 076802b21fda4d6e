"""IPv4 and IPv6: the programs, with the arguments of the overlay, accept connections of both families at
every port, and reach each other over IPv6."""

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import yaml

from keelmq.client import Message, Producer
from tests.deploy.chart import comparable, objects_of, template
from tests.deploy.conftest import OVERLAYS, ROOT, copy_tree, render
from tests.deploy.objects import Objects, container, environment, expanded
from tests.deploy.test_policy import configs
from tests.support.ports import free_ports

SELF = {4: "127.0.0.1", 6: "::1"}
DEADLINE_S = 30.0


def with_component(tree: Path, overlay: str, *components: str) -> Objects:
    file = tree / OVERLAYS[overlay] / "kustomization.yaml"
    text = file.read_text()
    listed = "".join(f"  - ../../components/{each}\n" for each in components)
    file.write_text(text + (listed if "components:\n" in text else f"components:\n{listed}"))
    done = render(tree, overlay)
    assert done.returncode == 0, done.stderr
    return Objects([each for each in yaml.safe_load_all(done.stdout) if each])


def test_only_services_and_arguments_differ_from_ha(rendered: dict[str, Objects]) -> None:
    before, after = comparable(rendered["ha"]), comparable(rendered["dual-stack"])
    assert before.keys() == after.keys()
    changed = {kind for kind, name in before if before[kind, name] != after[kind, name]}
    assert changed == {"Service", "StatefulSet"}
    for each in rendered["dual-stack"].kind("Service"):
        assert each["spec"]["ipFamilyPolicy"] == "PreferDualStack"


COMBINED = {
    "external-nodeport": ("external-nodeport",),
    "external-loadbalancer": ("external-loadbalancer",),
    "proxy": ("proxy",),
    "container": ("container",),
}
"""Overlay -> the chart's examples beside dual-stack."""


@pytest.mark.parametrize("overlay", COMBINED)
def test_every_program_and_listener_gets_it(overlay: str, helm: Path, tmp_path: Path) -> None:
    """The component is the last one; the chart makes the same."""
    found = with_component(copy_tree(tmp_path, key="only-for-tests-" * 4), overlay, "dual-stack")
    assert comparable(found) == comparable(objects_of(template(helm, [*COMBINED[overlay], "dual-stack"])))
    for each in found.stateful_sets:
        config = configs(found, each, tmp_path)[0]
        assert config.bind_address == "::"
        hosts = (
            {host for host, _ in config.further_listeners.values()} if hasattr(config, "listeners") else set()
        )
        assert hosts == ({"::"} if overlay.startswith("external") else set())
    for each in found.kind("Deployment"):
        assert container(each)["args"][-1] == "bindAddress=::"


# -- the programs ----------------------------------------------------------------------------------------


def arguments_of(objects: Objects, name: str, config: Path, **keys: object) -> list[str]:
    """Program and arguments of the pod, with these keys in addition."""
    (each,) = [one for one in objects.all if one["metadata"]["name"] == name and "template" in one["spec"]]
    variables = environment(each, index=0, address=SELF[6])
    _, _, *arguments = (expanded(one, variables) for one in container(each)["args"])
    more = [part for key, value in keys.items() for part in ("--set", f"{key}={value}")]
    module = {"mqnamesrv": "namesrv", "mqbroker": "broker", "mqproxy": "proxy"}[container(each)["command"][0]]
    return ["-m", module, "-c", str(config), *arguments, *more]


@contextlib.asynccontextmanager
async def running(log: Path, *commands: list[str]) -> AsyncIterator[None]:
    """Python with these arguments, until the block ends."""
    processes = []
    with log.open("wb") as output:
        try:
            for each in commands:
                started = await asyncio.create_subprocess_exec(
                    sys.executable,
                    *each,
                    cwd=ROOT,
                    env=os.environ | {"PYTHONPATH": str(ROOT)},
                    stdout=output,
                    stderr=output,
                )
                processes.append(started)
            yield
        finally:
            for each_process in processes:
                with contextlib.suppress(ProcessLookupError):
                    each_process.kill()
                await each_process.wait()


async def connected(name: str, host: str, port: int, log: Path) -> None:
    """Waits until the port accepts a connection."""
    deadline = asyncio.get_running_loop().time() + DEADLINE_S
    while True:
        try:
            _, writer = await asyncio.open_connection(host, port)
        except OSError as error:
            assert asyncio.get_running_loop().time() < deadline, f"{name}: {error}\n{log.read_text()}"
            await asyncio.sleep(0.05)
        else:
            writer.close()
            return


async def test_every_port_accepts_both_families_and_messages_go_over_ipv6(tmp_path: Path) -> None:
    tree = copy_tree(tmp_path, key="only-for-tests-" * 4)
    objects = with_component(tree, "proxy", "external-nodeport", "dual-stack")
    keys = "names controller raft names_http names_out broker ha broker_http broker_out grpc grpc_http"
    port = dict(zip(keys.split(), free_ports(11), strict=True))
    (empty := tmp_path / "empty.conf").write_text("")
    (key := tmp_path / "raft.key").write_text("only-for-tests-" * 4)
    key.chmod(0o600)
    servers = arguments_of(
        objects,
        "keelmq-namesrv",
        empty,
        listenPort=port["names"],
        httpPort=port["names_http"],
        listeners=f"external://[::]:{port['names_out']}",
        enableControllerInNamesrv="true",
        controllerDLegerGroup="g",
        controllerDLegerPeers=f"n0-pod.example:{port['controller']}",
        controllerRaftPeers=f"n0-pod.example:{port['raft']}",
        controllerRaftSecretFile=key,
        controllerStorePath=tmp_path / "controller",
        kvConfigPath=tmp_path / "kvConfig.json",
    )
    brokers = arguments_of(
        objects,
        "keelmq-broker-a",
        empty,
        listenPort=port["broker"],
        haListenPort=port["ha"],
        httpPort=port["broker_http"],
        fastListenPort=-1,
        listeners=f"external://[::]:{port['broker_out']}",
        brokerName="broker-a",
        namesrvAddr=f"[::1]:{port['names']}",
        brokerId=0,
        brokerRole="SYNC_MASTER",
        storePathRootDir=tmp_path / "store",
        mappedFileSizeCommitLog=1_048_576,
        mappedFileSizeConsumeQueue=300_000,
    )
    proxies = arguments_of(
        objects,
        "keelmq-proxy",
        empty,
        namesrvAddr=f"[::1]:{port['names']}",
        grpcServerPort=port["grpc"],
        httpPort=port["grpc_http"],
        allowOpenNetwork="true",
    )
    log = tmp_path / "log"
    async with running(log, servers, brokers, proxies):
        for name in port.keys() - {"raft"}:  # a single member has no other one to listen for
            for host in SELF.values():
                await connected(name, host, port[name], log)
        async with Producer(f"[::1]:{port['names']}", "g") as producer:
            sent = await producer.send(Message("T", b"hello"))
            assert sent.msg_id

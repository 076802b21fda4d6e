"""The worlds of tests/sim/whole, with containers: each process is an mqbrokercontainer with a replica of the
watched group and a neighbour of another group. What kills the one kills the other, and both use one loop.

The neighbour's store survives every death as it is: nobody judges it.
"""

import asyncio
import shutil
from pathlib import Path

from broker.container.app import ContainerServer
from broker.container.config import ContainerConfig
from broker.container.core.identity import NOT_APPLIED, BrokerIdentity
from broker.container.local_host import LocalHost
from tests.sim.whole.group import Conditions, WholeGroup, play
from tests.sim.whole.nemesis import story
from tests.sim.whole.programs import CLUSTER, GROUP, BrokerRun

NEIGHBOUR = "broker-n"
NEIGHBOUR_PORT = 12_911
CONTAINER_PORT = 10_811
OF_CONTAINER = ("httpPort", "namesrvAddr")


class ContainerRun(BrokerRun):
    """One run of `mqbrokercontainer`. To the world it looks like the broker of the watched group in it."""

    async def _live(self) -> None:
        try:
            async with ContainerServer(self._write_files()) as server:
                (host,) = server.hosts
                assert isinstance(host, LocalHost)
                reasons = [each.reason for each in (await server.container.status()).brokers if each.reason]
                if server.container.states().get("quarantined"):
                    raise AssertionError(f"a broker was kept out: {reasons}")
                self.broker = host.broker(BrokerIdentity(CLUSTER, GROUP, NOT_APPLIED))
                await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            self.failure = error
            raise

    def _write_files(self) -> ContainerConfig:
        root = Path(str(self.settings["storePathRootDir"]))
        place = root.with_name(f"{root.name}-files")
        place.mkdir(exist_ok=True)  # it is there after a stop in order
        store = root.with_name(f"{root.name}-neighbour")
        earlier = _runs_before(root)
        if earlier and not store.exists():
            shutil.copytree(earlier[-1], store)
        theirs = {"brokerName": NEIGHBOUR, "listenPort": NEIGHBOUR_PORT, "storePathRootDir": store}
        files = []
        for name, changes in (("watched", {}), ("neighbour", theirs)):
            files.append(place / f"{name}.conf")
            lines = {**self.settings, "fastListenPort": -1, **changes}
            kept = {key: value for key, value in lines.items() if key not in OF_CONTAINER}
            files[-1].write_text("".join(f"{key}={_text(value)}\n" for key, value in kept.items()))
        return ContainerConfig.model_validate(
            {
                "listenPort": CONTAINER_PORT,
                "fastListenPort": -1,
                "httpPort": -1,
                "auditEnable": False,
                "brokerContainerIP": self.process.host,
                "namesrvAddr": self.settings["namesrvAddr"],
                "brokerConfigPaths": ":".join(map(str, files)),
                "containerStatePath": place / "brokers.json",
            }
        )


def _runs_before(root: Path) -> list[Path]:
    """Returns the neighbour's directories of earlier runs of this machine, the last one last."""
    machine = root.name.rpartition("-")[0]
    found = root.parent.glob(f"{machine}-*-neighbour")
    return sorted(found, key=lambda path: int(path.name.split("-")[1]))


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


class ContainerGroup(WholeGroup):
    """A WholeGroup of containers."""

    run_type = ContainerRun


def run(seed: int, conditions: Conditions | None = None) -> ContainerGroup:
    """Violation, with what happened."""
    return play(seed, story, conditions, world_type=ContainerGroup)


def run_seed(seed: int) -> ContainerGroup:
    return run(seed)

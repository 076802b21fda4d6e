"""The container that is attacked: two worker processes and a master without controllers, of a cluster of its
own, so that what becomes of it is seen at the container only."""

import itertools
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from cli.lab.cluster import Cluster, ClusterError, Program, write_settings
from cli.lab.ports import HOST, free_ports, is_free

CONTAINER_CLUSTER: Final = "ContainerCluster"
STOP_S: Final = 10.0


class AttackedContainer:
    """`brokers`: the directory whose files requests may name. `outside`: one whose files they may not."""

    def __init__(self, cluster: Cluster, settings: Mapping[str, str]) -> None:
        """settings: what closes a program that keeps its users in files, or nothing."""
        directory = cluster.directory / "container"
        self.brokers, self.outside = directory / "brokers", directory / "outside"
        for each in (self.brokers, self.outside):
            each.mkdir(parents=True)
        self._cluster, self._ports, self._numbers = cluster, free_ports(), itertools.count()
        own, http = self._port(), self._port()
        self.address, self.http_address = f"{HOST}:{own}", f"{HOST}:{http}"
        first = self.broker_file("inner-0")
        self._program = Program(
            "container",
            "broker.container",
            directory,
            {
                **settings,
                "bindAddress": HOST,
                "brokerContainerIP": HOST,
                "listenPort": str(own),
                "fastListenPort": "-1",
                "httpPort": str(http),
                "namesrvAddr": cluster.name_servers[0].address,
                "brokerConfigPaths": str(first),
                "brokerConfigDirectories": str(self.brokers),
                "containerStatePath": str(directory / "state" / "brokers.json"),
                "containerProcesses": "2",
            },
            self.address,
        )

    @property
    def settings(self) -> Mapping[str, str]:
        """Of the container."""
        return self._program.settings

    def start(self) -> None:
        self._program.write()
        self._cluster.start_program(self._program)

    def close(self) -> None:
        if self._program.is_running:
            try:
                self._cluster.stop_program(self._program, STOP_S)
            except (ClusterError, subprocess.TimeoutExpired):
                self._cluster.kill(self._program)

    def new_name(self) -> str:
        """Returns the name of a broker that there is not yet."""
        return f"extra-{next(self._numbers)}"

    def broker_file(self, name: str, directory: Path | None = None) -> Path:
        """Writes the file of a small master without controllers, in `brokers` or in another directory."""
        path = (directory or self.brokers) / f"{name}.conf"
        settings = {
            "brokerClusterName": CONTAINER_CLUSTER,
            "brokerName": name,
            "listenPort": str(self._port()),
            "fastListenPort": "-1",
            "storePathRootDir": str(self.brokers.parent / "stores" / name),
            "mappedFileSizeCommitLog": "1048576",
            "mappedFileSizeConsumeQueue": "20000",
            "shutdownForwardTimeout": "100",
        }
        write_settings(path, settings)
        return path

    def _port(self) -> int:
        """Returns a free port, of which the next one is free, too: a broker's replication."""
        return next(port for port in self._ports if is_free(port + 1))

"""A cluster whose brokers are in containers: each container is a machine, with a replica of every group."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from cli.lab.cluster import Cluster, Launcher, Program, write_settings
from cli.lab.ports import is_free

MODULE = "broker.container"


@dataclass(slots=True)
class InnerProgram:
    """A broker in a container: it runs as long as its container does."""

    name: str
    address: str
    settings: dict[str, str]
    container: Program

    @property
    def is_running(self) -> bool:
        """Whether the container's process runs."""
        return self.container.is_running


@dataclass(slots=True)
class ContainerProgram(Program):
    """A container. `settings` and `address`: of the replica of the first group; `inner`: of the other groups;
    `own`: of the container itself."""

    inner: dict[str, InnerProgram] = field(default_factory=dict)
    own: dict[str, str] = field(default_factory=dict)

    def write(self) -> None:
        """Writes the files of the brokers, and the container's, which names them."""
        files = {self.name: self.settings} | {each.name: each.settings for each in self.inner.values()}
        paths = [str(self.write_inner(name, settings)) for name, settings in files.items()]
        write_settings(self.config_path, {**self.own, "brokerConfigPaths": ":".join(paths)})

    def write_inner(self, name: str, settings: Mapping[str, str]) -> Path:
        """Writes the file of one broker, and returns its path."""
        path = self.directory / f"{name}.inner.conf"
        write_settings(path, settings)
        return path

    def relocate(self, host: str) -> None:
        """Sets the address of all brokers from the next start on."""
        for each in self.inner.values():
            each.address = f"{host}:{each.address.rpartition(':')[2]}"
            each.settings["brokerIP1"] = host
        self.own["brokerContainerIP"] = host
        self.address = f"{host}:{self.address.rpartition(':')[2]}"
        self.settings["brokerIP1"] = host
        self.write()


@dataclass(frozen=True, slots=True)
class Group:
    """One group of a ContainerCluster, in the form that a Watcher needs."""

    broker_name: str
    brokers: Sequence[InnerProgram]
    cluster: Cluster

    @property
    def name_servers(self) -> list[Program]:
        """Those of the cluster."""
        return self.cluster.name_servers

    def controller_at(self, address: str) -> Program:
        """Returns the name server whose controller listens on host:port."""
        return self.cluster.controller_at(address)


class ContainerCluster(Cluster):
    """`brokers` are containers. To code for a Cluster they look like the brokers of the first group."""

    def __init__(
        self,
        directory: Path,
        *,
        groups: Sequence[str],
        containers: int,
        name_servers: int = 3,
        cluster_name: str = "KeelCluster",
        processes: int = 1,
        namesrv_settings: Mapping[str, str] | None = None,
        broker_settings: Mapping[str, str] | None = None,
        container_settings: Mapping[str, str] | None = None,
        other_settings: Mapping[str, str] | None = None,
        detached: bool = False,
        http: bool = False,
        launcher: Launcher | None = None,
    ) -> None:
        """groups: names; the first one is broker_name. processes: containerProcesses. other_settings: of the
        groups after the first, over broker_settings."""
        self._groups, self._processes = tuple(groups), processes
        self._container_settings = dict(container_settings or {})
        self._other_settings = dict(other_settings or {})
        super().__init__(
            directory,
            name_servers=name_servers,
            brokers=containers,
            cluster_name=cluster_name,
            broker_name=groups[0],
            namesrv_settings=namesrv_settings,
            broker_settings=broker_settings,
            detached=detached,
            http=http,
            launcher=launcher,
        )

    @property
    def containers(self) -> list[ContainerProgram]:
        """All of them."""
        return [program for program in self.brokers if isinstance(program, ContainerProgram)]

    def group(self, name: str) -> Group:
        """Returns a group's replicas, one in each container."""
        if name == self.broker_name:
            first = [InnerProgram(each.name, each.address, each.settings, each) for each in self.containers]
            return Group(name, first, self)
        return Group(name, [each.inner[name] for each in self.containers], self)

    def add_group(self, group: str) -> dict[str, Path]:
        """Writes the files of the replicas of one more group, one in each container, and returns them by the
        name of the container. They run once they are added to the containers (mqadmin addBroker)."""
        ports, files = self._ports(), {}
        for made in self.containers:
            host = made.address.rpartition(":")[0]
            made.inner[group] = self._inner(group, made, host, next(ports))
            files[made.name] = made.write_inner(made.inner[group].name, made.inner[group].settings)
        return files

    def _ports(self) -> Iterator[int]:
        """Even ports: in a container, a broker's replication port is its listenPort + 1."""
        return (port for port in super()._ports() if port % 2 == 0 and is_free(port + 1))

    def _broker(self, index: int, settings: dict[str, str], address: str, ports: Iterator[int]) -> Program:
        host = address.rpartition(":")[0]
        name = f"broker-{index}"
        own = {
            "bindAddress": settings["bindAddress"],
            "brokerContainerIP": host,
            "listenPort": str(next(ports)),
            "fastListenPort": "-1",
            "httpPort": settings["httpPort"],
            "namesrvAddr": settings["namesrvAddr"],
            "containerProcesses": str(self._processes),
            "containerStatePath": str(self.directory / f"{name}.state.json"),
            **self._container_settings,
        }
        theirs = ("bindAddress", "haListenPort", "httpPort", "namesrvAddr")
        common = {key: value for key, value in settings.items() if key not in theirs}
        port = next(ports)
        made = ContainerProgram(
            name, MODULE, self.directory, {**common, "listenPort": str(port)}, f"{host}:{port}", own=own
        )
        for group in self._groups[1:]:
            made.inner[group] = self._inner(group, made, host, next(ports))
        return made

    def _inner(self, group: str, made: ContainerProgram, host: str, port: int) -> InnerProgram:
        """Returns a replica of another group than the first in a container, not written yet."""
        store = str(self.directory / f"{made.name}-{group}")
        changes = {"brokerName": group, "listenPort": str(port), "storePathRootDir": store}
        settings = {**made.settings, **self._other_settings, **changes}
        return InnerProgram(f"{made.name}-{group}", f"{host}:{port}", settings, made)

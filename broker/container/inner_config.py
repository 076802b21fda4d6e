"""Reads the file of an inner broker, a broker in a container: settings of the process (network, TLS,
security, name servers) are the container's, all others are the broker's.

Source: RocketMQ 5.3.3 BrokerContainerProcessor.addBroker and BrokerContainer.
"""

from pathlib import Path
from typing import Final

import msgspec

from broker.config.broker_config import BrokerConfig
from broker.config.metrics_settings import PROM
from broker.container.config import ContainerConfig
from broker.container.core.identity import NOT_APPLIED, BrokerIdentity
from broker.container.core.plan import BrokerPlan
from broker.container.inner_file import read_settings
from broker.naming.vip_port import BELOW
from keelmq.remoting.booleans import is_true
from keelmq.remoting.config_store import ConfigSources, with_stored
from keelmq.runtime.config import ConfigError, load_config
from keelmq.security.server_config import ServerConfig

MASTER_ID: Final = 0
OF_CONTAINER: Final = frozenset(
    {field.alias or name for name, field in ServerConfig.model_fields.items()}
    | {"bindAddress", "namesrvAddr"}
)
"""Keys whose value is the container's, regardless of the broker's file."""
HA_PORT: Final = "haListenPort"
DEFAULTS: Final = {
    "listenPort": "6888",
    "httpPort": "-1",  # the container's HTTP port serves all its brokers
    "haStayAwake": "false",  # a master that does not sleep would block the others on the loop
}
"""Defaults that differ from those of a stand-alone broker."""


class InnerConfig(msgspec.Struct, frozen=True):
    """One broker, as configured. notes: keys of its file that have no effect here, with the reason."""

    path: Path
    config: BrokerConfig
    config_sources: ConfigSources
    identity: BrokerIdentity
    notes: tuple[str, ...]

    def plan(self) -> BrokerPlan:
        """Returns the resources that the broker is about to use. Resolves the links of its paths. Raises
        ConfigError: it cannot."""
        config = self.config
        ports = {config.listen_port: "listenPort"}
        if config.listen_port:
            ports[config.listen_port + 1] = HA_PORT
            if not config.fast_listen_port and config.listen_port > BELOW:
                ports[config.listen_port - BELOW] = "fastListenPort"
        if config.fast_listen_port > 0:
            ports[config.fast_listen_port] = "fastListenPort"
        for name, (_, port) in config.further_listeners.items():
            ports[port] = f"listeners ({name})"
        if config.metrics_exporter_type == PROM:
            ports[config.metrics_prom_exporter_port] = "metricsPromExporterPort"
        if config.http_port > 0:
            ports[config.http_port] = "httpPort"
        elif config.http_port == 0 and config.listen_port:
            ports[config.listen_port + 10_000] = "httpPort"
        ports.pop(0, None)
        return BrokerPlan(str(self.path), self.identity, ports, self._real_paths())

    def _real_paths(self) -> dict[str, str]:
        config = self.config
        log = config.store_path_root_dir / "commitlog"
        try:
            found = {"storePathRootDir": str(config.store_path_root_dir.resolve())}
            if log.is_symlink():
                found["commitlog"] = str(log.resolve())
            if config.store_path_epoch_file is not None:
                found["storePathEpochFile"] = str(config.epoch_path.resolve())
        except (OSError, RuntimeError) as error:  # the latter: a loop of links
            why = error.strerror if isinstance(error, OSError) else str(error)
            raise ConfigError(f"{self.path}: storePathRootDir or storePathEpochFile: {why}") from error
        return found


def load_inner(path: Path, container: ContainerConfig) -> InnerConfig:
    """Returns the broker of a file. Raises ConfigError with a text for the operator."""
    written = read_settings(path)
    _check_rules(path, written)
    overrides = {key: value for key, value in DEFAULTS.items() if key not in written}
    if not is_true(written.get("enableControllerMode")) and written.get("brokerRole") != "SLAVE":
        overrides["brokerId"] = str(MASTER_ID)
    if container.broker_container_ip and "brokerIP1" not in written:
        overrides["brokerIP1"] = container.broker_container_ip
    if container.namesrv_addr:
        overrides["namesrvAddr"] = container.namesrv_addr  # the cross-field checks need it now
    if container.security_path is not None:
        overrides["securityPath"] = str(container.security_path)
    (loaded,) = load_config(
        BrokerConfig, path=path, environ={}, overrides=overrides, skipped=OF_CONTAINER | {HA_PORT}
    )
    assert isinstance(loaded, BrokerConfig)
    config = with_stored(loaded, path, {}, overrides)
    return InnerConfig(
        path,
        config.model_copy(update=_of_container(container)),
        ConfigSources(path, {}, overrides),
        identity_of(config),
        tuple(_notes(written)),
    )


def identity_of(config: BrokerConfig) -> BrokerIdentity:
    """Returns the key of the broker in its container."""
    broker_id = NOT_APPLIED if config.enable_controller_mode else config.broker_id
    return BrokerIdentity(config.broker_cluster_name, config.broker_name, broker_id)


def _of_container(container: ContainerConfig) -> dict[str, object]:
    names = [
        name for name, field in BrokerConfig.model_fields.items() if (field.alias or name) in OF_CONTAINER
    ]
    return {name: getattr(container, name) for name in names}


def _check_rules(path: Path, written: dict[str, str]) -> None:
    """Raises ConfigError with RocketMQ's words where it has them."""
    if is_true(written.get("duplicationEnable")):
        raise ConfigError(f"{path}: Can not add broker to container when duplicationEnable is true currently")
    if is_true(written.get("enableControllerMode")):
        return
    if written.get("brokerRole") == "SLAVE":
        broker_id = written.get("brokerId", "")
        if not (broker_id.isascii() and broker_id.isdigit() and int(broker_id) > 0):
            raise ConfigError(
                f"{path}: slave broker id must be > 0, and brokerId is {broker_id or 'not set'}"
            )


def _notes(written: dict[str, str]) -> list[str]:
    found = [
        f"{key} has no effect: the container's value counts" for key in sorted(OF_CONTAINER & set(written))
    ]
    if HA_PORT in written:
        found.append(f"{HA_PORT} has no effect: it is listenPort + 1 in a container")
    if is_true(written.get("enableControllerMode")) and written.get("brokerId", "-1") != "-1":
        found.append("brokerId has no effect: the controllers give it (enableControllerMode)")
    return found

"""Files of containers: the brokers in brokerConfigPaths, as their container would start them."""

from collections.abc import Iterator

from broker.container.core.plan import BrokerPlan, problems_of
from broker.container.inner_config import InnerConfig, load_inner
from broker.naming.vip_port import BELOW
from cli.doctor.files import LIST_OF_KEYS, ConfigFile, Kind
from cli.doctor.findings import Finding, failed, ok, warning
from cli.doctor.machine import ports_of
from keelmq.runtime.config import ConfigError


def inner_files(file: ConfigFile) -> tuple[list[ConfigFile], list[Finding]]:
    """Returns the brokers of a container's file that load, with the container's settings, and what is wrong
    with them. A broker that a running container was told to add is not in its file, and not checked."""
    container = file.container
    assert container is not None
    loaded, found = [], []
    plans: list[BrokerPlan] = []
    own_ports = {port.number: port.role for port in ports_of(file)}
    if container.listen_port and not container.fast_listen_port:
        own_ports[container.listen_port - BELOW] = "fast"
    for path in container.config_paths:
        name = f"{file.name}: {path.name}"
        try:
            inner = load_inner(path.absolute(), container)
        except ConfigError as error:
            step = (
                f"correct the file, or brokerConfigPaths; {LIST_OF_KEYS}. The other brokers start without it"
            )
            found += [failed("config.container", name, line, step) for line in str(error).splitlines()]
            continue
        plan = inner.plan()
        found += _findings(name, inner, problems_of(plan, plans, own_ports))
        plans.append(plan)
        loaded.append(ConfigFile(inner.path, name, Kind.BROKER, broker=inner.config))
    if not container.config_paths:
        text = "brokerConfigPaths is empty: it starts without a broker, and waits for mqadmin addBroker"
        found.append(ok("config.container", file.name, text))
    return loaded, found


def _findings(name: str, inner: InnerConfig, problems: list[str]) -> Iterator[Finding]:
    for text in problems:
        step = "change one of them: the container would start without this broker"
        yield failed("config.container", name, text, step)
    for note in inner.notes:
        yield warning("config.container", name, note, "remove that key")
    if not problems:
        ports = ", ".join(map(str, sorted(inner.plan().ports)))
        yield ok("config.container", name, f"broker {inner.identity.canonical_name}, ports {ports}")

"""Files of containers: the brokers in brokerConfigPaths and in containerStatePath, as their container would
start them."""

from collections.abc import Iterator
from pathlib import Path

from broker.container.config import ContainerConfig
from broker.container.core.members import BadMembers, Members, parse_members
from broker.container.core.plan import BrokerPlan, problems_of
from broker.container.inner_config import InnerConfig, load_inner
from broker.naming.vip_port import BELOW
from cli.doctor.files import ConfigFile, Kind, keys_of
from cli.doctor.machine import ports_of
from keelmq.health.findings import Finding, failed, ok, warning
from keelmq.runtime.config import ConfigError


def inner_files(file: ConfigFile) -> tuple[list[ConfigFile], list[Finding]]:
    """Returns the brokers of a container's file that load, with the container's settings, and what is wrong
    with them: those that it would start, of its file and of containerStatePath."""
    container = file.container
    assert container is not None
    loaded: list[ConfigFile] = []
    paths, found = _members(file, container)
    plans: list[BrokerPlan] = []
    own_ports = {port.number: port.role for port in ports_of(file)}
    if container.listen_port and not container.fast_listen_port:
        own_ports[container.listen_port - BELOW] = "fast"
    configured = {path.absolute() for path in container.config_paths}
    for path in paths:
        name = f"{file.name}: {path.name}"
        try:
            plan = (inner := load_inner(path, container)).plan()
        except ConfigError as error:
            step = _step(container, path, is_kept=path not in configured)
            found += [failed("config.container", name, line, step) for line in str(error).splitlines()]
            continue
        found += _findings(name, inner, problems_of(plan, plans, own_ports))
        plans.append(plan)
        loaded.append(ConfigFile(inner.path, name, Kind.BROKER, broker=inner.config))
    if not paths and not found:
        text = "brokerConfigPaths is empty: it starts without a broker, and waits for mqadmin addBroker"
        found.append(ok("config.container", file.name, text))
    return loaded, found


def _members(file: ConfigFile, container: ContainerConfig) -> tuple[list[Path], list[Finding]]:
    """Returns the files of the brokers that the container would start, and what requests have changed."""
    configured = [str(path.absolute()) for path in container.config_paths]
    kept, path = Members(), container.state_path
    if not container.persist_brokers:
        return [*map(Path, configured)], []
    try:
        kept = parse_members(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        pass
    except (OSError, UnicodeDecodeError, BadMembers) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        text = f"containerStatePath {path} cannot be read: {reason}; the container would not start"
        step = f"cp {path}.bak {path} (the version before), or remove it: then brokerConfigPaths alone counts"
        return [*map(Path, configured)], [failed("config.container", file.name, text, step)]
    found = []
    for each in sorted(kept.removed & set(configured)):
        text = f"{each} is in brokerConfigPaths, but a request removed its broker: it stays away"
        step = f"mqadmin addBroker -c {_address(container)} -b {each}, or take it out of brokerConfigPaths"
        found.append(warning("config.container", file.name, text, step))
    for each in sorted(kept.to_start(configured)):
        if (worker := kept.worker_of(each)) is not None and worker >= container.container_processes:
            text = f"{each} was in worker {worker}, and containerProcesses is {container.container_processes}"
            step = f"keelmq container list -c {_address(container)} shows where it is after the next start"
            found.append(warning("config.container", file.name, text, step))
    return [Path(each) for each in kept.to_start(configured)], found


def _step(container: ContainerConfig, path: Path, *, is_kept: bool) -> str:
    """is_kept: a request added the broker; it is in no file that an operator writes."""
    if not is_kept:
        step = f"correct the file, or brokerConfigPaths{keys_of(Kind.BROKER)}"
        return f"{step}. The other brokers start without it"
    return (
        f"correct or restore the file, which {container.state_path} names, or mqadmin removeBroker "
        f"-c {_address(container)} -b any:{path}:-1. The other brokers start without it"
    )


def _address(container: ContainerConfig) -> str:
    return f"{container.broker_container_ip or '127.0.0.1'}:{container.listen_port}"


def _findings(name: str, inner: InnerConfig, problems: list[str]) -> Iterator[Finding]:
    for text in problems:
        step = "change one of them: the container would start without this broker"
        yield failed("config.container", name, text, step)
    for note in inner.notes:
        yield warning("config.container", name, note, "remove that key")
    if not problems:
        ports = ", ".join(map(str, sorted(inner.plan().ports)))
        yield ok("config.container", name, f"broker {inner.identity.canonical_name}, ports {ports}")

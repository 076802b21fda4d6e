"""Configuration files as the programs read them: which program a file is for, and whether it would start."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from broker.config.broker_config import BrokerConfig
from broker.config.grpc_settings import GrpcSettings
from broker.container.config import ContainerConfig
from keelmq.health.findings import Finding, failed, ok, plural, warning
from keelmq.remoting.booleans import is_true
from keelmq.remoting.config_store import with_stored
from keelmq.runtime.config import (
    ENVIRON_PREFIX,
    OF_TOOLS,
    Config,
    ConfigError,
    load_config,
    not_utf8,
    parse_settings,
    read_named,
    without_effect,
)
from keelmq.upstream.keys import names
from namesrv.config import NamesrvConfig
from namesrv.plugins.controller.config import ControllerConfig
from proxy.server.config import ProxyConfig

ENABLE_KEY = "enableControllerInNamesrv"


class Kind(StrEnum):
    """The program that a file is for."""

    NAMESRV = "mqnamesrv"
    CONTROLLER = "mqcontroller"
    BROKER = "mqbroker"
    CONTAINER = "mqbrokercontainer"
    PROXY = "mqproxy"


@dataclass(frozen=True)
class ConfigFile:
    """A file that loads. `controller`: also set for a name server with an embedded controller."""

    path: Path
    name: str  # short, for people
    kind: Kind
    namesrv: NamesrvConfig | None = None
    controller: ControllerConfig | None = None
    broker: BrokerConfig | None = None
    container: ContainerConfig | None = None
    proxy: ProxyConfig | None = None

    @property
    def server(self) -> BrokerConfig | NamesrvConfig | ContainerConfig | ProxyConfig:
        """The settings that all programs have: ports, TLS, security."""
        found = self.broker or self.namesrv or self.container or self.proxy
        assert found is not None, self.name
        return found


def _keys(model: type[Config]) -> frozenset[str]:
    """Returns the keys that the model has, or RocketMQ for the same program."""
    ours = frozenset(field.alias or name for name, field in model.model_fields.items())
    return ours | names().keys_of(model.UPSTREAM)


_NAMESRV, _CONTROLLER, _BROKER = _keys(NamesrvConfig), _keys(ControllerConfig), _keys(BrokerConfig)
_CONTAINER = _keys(ContainerConfig) - _NAMESRV - _CONTROLLER - _BROKER
_PROXY, _GRPC = _keys(ProxyConfig), _keys(GrpcSettings)
_OF_PROXY = _PROXY - _NAMESRV - _CONTROLLER - _BROKER


def kind_of(settings: Mapping[str, str]) -> Kind | None:
    """Returns the program that knows most of the keys; None: no program knows more than the others."""
    keys = settings.keys()
    if keys & _CONTAINER:
        return Kind.CONTAINER
    if keys & _OF_PROXY or (keys & _GRPC and keys <= _PROXY):  # a broker's file has enableProxy as well
        return Kind.PROXY
    of_broker = len(keys & (_BROKER - _NAMESRV - _CONTROLLER))
    of_controller = len(keys & (_CONTROLLER - _BROKER))
    of_namesrv = len(keys & (_NAMESRV - _BROKER - _CONTROLLER))
    if of_broker == of_controller + of_namesrv:
        return None
    if of_broker > of_controller + of_namesrv:
        return Kind.BROKER
    return Kind.CONTROLLER if of_controller and ENABLE_KEY not in settings else Kind.NAMESRV


def load(path: Path, kind: Kind | None, name: str) -> tuple[ConfigFile | None, list[Finding]]:
    """Returns the loaded file and findings. `kind` None: from the keys. No file: it would not start."""
    try:
        settings = parse_settings(read_named(path).decode(), path.name)
        kind = kind or kind_of(settings)
        if kind is None:
            return None, [
                failed(
                    "config.loads",
                    name,
                    "its keys do not show which program it is for",
                    f"say so with --kind {', '.join(Kind)}",
                )
            ]
        found = _load(path, name, kind, settings)
    except OSError as error:
        step = "check the path and its permissions"
        return None, [failed("config.loads", name, f"cannot be read: {error.strerror}", step)]
    except UnicodeDecodeError as error:
        what, _, step = not_utf8(error).partition("; ")
        return None, [failed("config.loads", name, what, step)]
    except ConfigError as error:
        return None, [
            failed("config.loads", name, line, f"correct the file{keys_of(kind)}")
            for line in str(error).splitlines()
        ]
    loaded = (found.broker, found.container, found.namesrv, found.controller, found.proxy)
    models = [type(each) for each in loaded if each]
    ignored = without_effect(*models, path=path, environ={}, overrides={})
    notes = [ok("config.loads", name, line) for line in ignored]
    return found, [ok("config.loads", name, _describe(found)), *notes, *_remarks(found)]


def keys_of(kind: Kind | None) -> str:
    """Returns the end of a step: the command that lists the keys of a program. `kind` None: nothing."""
    if kind is None:
        return ""
    required = ", once its required keys are set," if kind is Kind.CONTROLLER else ""
    return f"; {kind} -p{required} lists all keys"


def _load(path: Path, name: str, kind: Kind, settings: Mapping[str, str]) -> ConfigFile:
    if kind is Kind.BROKER:
        (broker,) = load_config(BrokerConfig, path=path, environ={}, overrides={})
        assert isinstance(broker, BrokerConfig)
        return ConfigFile(path, name, kind, broker=with_stored(broker, path, {}, {}))
    if kind is Kind.CONTAINER:
        (container,) = load_config(ContainerConfig, path=path, environ={}, overrides={})
        assert isinstance(container, ContainerConfig)
        return ConfigFile(path, name, kind, container=with_stored(container, path, {}, {}))
    if kind is Kind.PROXY:
        (proxy,) = load_config(ProxyConfig, path=path, environ={}, overrides={})
        assert isinstance(proxy, ProxyConfig)
        return ConfigFile(path, name, kind, proxy=with_stored(proxy, path, {}, {}))
    embedded = is_true(settings.get(ENABLE_KEY))
    models: list[type[Config]] = [NamesrvConfig]
    if kind is Kind.CONTROLLER or embedded:
        models.append(ControllerConfig)
    namesrv, *rest = load_config(*models, path=path, environ={}, overrides={})
    assert isinstance(namesrv, NamesrvConfig)
    namesrv = with_stored(namesrv, path, {}, {})
    controller = next((each for each in rest if isinstance(each, ControllerConfig)), None)
    return ConfigFile(path, name, kind, namesrv=namesrv, controller=controller)


def _describe(file: ConfigFile) -> str:
    if file.broker is not None:
        broker = file.broker
        return (
            f"loads as {file.kind}: {broker.broker_name} of {broker.broker_cluster_name}; {broker.promise()}"
        )
    if file.container is not None:
        count = len(file.container.config_paths)
        return f"loads as {file.kind}: {plural(count, 'broker')} in brokerConfigPaths"
    if file.proxy is not None:
        return (
            f"loads as {file.kind} for the brokers that {file.proxy.namesrv_addr or 'no name server'} lists"
        )
    if file.controller is None:
        return f"loads as {file.kind}"
    controller = file.controller
    members = len(controller.request_addresses)
    return (
        f"loads as {file.kind}: controller {controller.controller_d_leger_self_id} of {members} in group "
        f"{controller.controller_d_leger_group}, survives {(members - 1) // 2} lost"
    )


def _remarks(file: ConfigFile) -> list[Finding]:
    """Returns the warnings that the program would log at its start."""
    found = []
    if file.proxy is not None and not file.proxy.namesrv_addr:
        step = "set namesrvAddr, unless -n is on the command line"
        found.append(warning("config.loads", file.name, "namesrvAddr is empty: it finds no brokers", step))
    if file.broker is not None:
        found += [
            warning("config.loads", file.name, text, "change or remove one of these keys")
            for text in file.broker.warnings()
        ]
    if file.controller is not None and file.controller.enable_elect_unclean_master:
        text = "enableElectUncleanMaster=true: a replica that lacks acknowledged messages may become master"
        step = "leave it false, unless availability is worth more than the messages"
        found.append(warning("config.loads", file.name, text, step))
    return found


def environment(environ: Mapping[str, str], files: Sequence[ConfigFile]) -> list[Finding]:
    """Warns of KEELMQ_* variables, which override the files of programs started from this shell."""
    names = sorted(name for name in environ if name.startswith(ENVIRON_PREFIX) and name not in OF_TOOLS)
    if not names or not files:
        return []
    text = "set in this environment, and override the files; not checked"
    step = "unset them, or check with `PROGRAM -c FILE -p` what a program started here would use"
    return [warning("config.loads", ", ".join(names), text, step)]

"""The tables of docs/reference/configuration.md, from the config models."""

from broker.config.broker_config import BrokerConfig
from broker.container.config import ContainerConfig
from keelmq.runtime.config import Config
from keelmq.upstream.keys import names, verdicts
from namesrv.config import NamesrvConfig
from namesrv.plugins.controller.config import ControllerConfig
from proxy.server.config import ProxyConfig

MODELS: tuple[type[Config], ...] = (
    NamesrvConfig,
    ControllerConfig,
    BrokerConfig,
    ContainerConfig,
    ProxyConfig,
)


def table(model: type[Config]) -> str:
    rows = ["| key | default | meaning |", "|---|---|---|"]
    for name, info in model.model_fields.items():
        default = "required" if info.is_required() else info.get_default()
        if info.default_factory is not None:
            default = "from the environment"
        text = (
            ""
            if default in (None, "")
            else str(default).lower()
            if isinstance(default, bool)
            else str(default)
        )
        rows.append(f"| `{info.alias or name}` | {text} | {info.description or ''} |")
    return "\n".join(rows)


def rocketmq_table() -> str:
    """Returns the verdict on each key of RocketMQ's that no program here has."""
    found = verdicts()
    rows = ["| keys of RocketMQ | here |", "|---|---|"]
    for key, missing in sorted(found.missing.items()):
        accepted = " or ".join(f"`{each}`" if each else "empty" for each in missing.accepted)
        rows.append(f"| `{key}` | only {accepted}: {missing.why}; {missing.instead} |")
    for each in found.no_effect:
        rows.append(f"| {', '.join(f'`{key}`' for key in sorted(each.keys))} | no effect: {each.why} |")
    for key, why in sorted(found.other_default.items()):
        rows.append(f"| `{key}` | another default than RocketMQ's {names().defaults[key]}: {why} |")
    return "\n".join(rows)


def tables() -> dict[str, str]:
    """Returns each table with the name of its marker."""
    return {model.__name__: table(model) for model in MODELS} | {"RocketMQ's keys": rocketmq_table()}

"""Rewrites the tables of docs/configuration.md from the config models: python tools/config_tables.py"""

import re
from pathlib import Path

from broker.config.broker_config import BrokerConfig
from broker.container.config import ContainerConfig
from keelmq.runtime.config import Config
from namesrv.config import NamesrvConfig
from namesrv.plugins.controller.config import ControllerConfig

DOCUMENT = Path(__file__).parent.parent / "docs" / "configuration.md"
MODELS: tuple[type[Config], ...] = (NamesrvConfig, ControllerConfig, BrokerConfig, ContainerConfig)


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


def rewritten(document: str) -> str:
    """The document with every table between its markers replaced by the one of today's model."""
    for model in MODELS:
        marker = f"<!-- {model.__name__} -->"
        pattern = re.compile(f"{re.escape(marker)}.*?{re.escape(marker)}", re.DOTALL)
        assert pattern.search(document), f"{DOCUMENT} lacks the markers of {model.__name__}"
        new = f"{marker}\n{table(model)}\n{marker}".replace("\\", r"\\")
        document = pattern.sub(new, document)
    return document


if __name__ == "__main__":
    DOCUMENT.write_text(rewritten(DOCUMENT.read_text()))

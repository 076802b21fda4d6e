"""Files of brokers and a container's configuration, for tests in this process."""

from pathlib import Path

from broker.container.config import ContainerConfig

SMALL = {
    "brokerClusterName": "c1",
    "listenPort": "0",
    "fastListenPort": "-1",
    "mappedFileSizeCommitLog": "65536",
    "mappedFileSizeConsumeQueue": "2000",
}


def broker_file(directory: Path, name: str, **changes: object) -> Path:
    """Writes <name>.conf of a small stand-alone broker; a change to None leaves a key out."""
    lines = {**SMALL, "brokerName": name, "storePathRootDir": str(directory / f"store-{name}"), **changes}
    path = directory / f"{name}.conf"
    path.write_text("".join(f"{key}={value}\n" for key, value in lines.items() if value is not None))
    return path


def container_config(directory: Path, *files: Path, **changes: object) -> ContainerConfig:
    """A container on free ports with these brokers, which keeps its members in `directory`."""
    given: dict[str, object] = {
        "bindAddress": "127.0.0.1",
        "listenPort": 0,
        "httpPort": -1,
        "brokerConfigPaths": ":".join(map(str, files)),
        "brokerConfigDirectories": str(directory),
        "containerStatePath": directory / "state" / "brokers.json",
        **changes,
    }
    return ContainerConfig.model_validate(given)

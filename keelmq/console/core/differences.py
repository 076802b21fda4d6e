"""Settings in which the replicas of a group differ. Pure."""

from collections.abc import Mapping

from keelmq.remoting.operation import Wire

OWN = frozenset(
    {
        "advertisedListeners",
        "authConfigPath",
        "bindAddress",
        "brokerIP1",
        "brokerIP2",
        "brokerId",
        "brokerRole",
        "clientCallbackExecutorThreads",
        "haListenPort",
        "haMasterAddress",
        "httpBindAddress",
        "httpPort",
        "listenPort",
        "listeners",
        "rocketmqHome",
    }
)
"""Keys whose value differs at each replica."""


class SettingDifference(Wire):
    """values: broker's address -> its value; null: it has no such key. is_own: a difference is right."""

    key: str
    values: dict[str, str | None]
    is_own: bool


def differences(replicas: Mapping[str, Mapping[str, str]]) -> list[SettingDifference]:
    """Returns the keys whose values differ; those where that is wrong or doubtful first. `replicas`: address
    -> settings."""
    found = []
    for key in sorted({key for settings in replicas.values() for key in settings}):
        values = {address: settings.get(key) for address, settings in replicas.items()}
        if len(set(values.values())) > 1:
            found.append(SettingDifference(key=key, values=values, is_own=_is_own(key)))
    return sorted(found, key=lambda each: (each.is_own, each.key))


def _is_own(key: str) -> bool:
    return key in OWN or key.startswith("storePath") or key.endswith(("Path", "Dir", "File"))

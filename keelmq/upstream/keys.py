"""What a configuration key of RocketMQ means in a program here that has no key of that name.

names.json is the inventory of RocketMQ's names, keys.toml the verdict on each key (wire.py: on the other
names). Both are read when a program meets the first key that it does not know. For a new release of RocketMQ,
replace names.json; tests/unit/keelmq/upstream then lists the keys without a verdict.
"""

import difflib
import functools
import json
import tomllib
from collections.abc import Collection, Mapping
from importlib import resources
from typing import NamedTuple

import msgspec

BROKER = frozenset({"BrokerConfig", "MessageStoreConfig", "NettyServerConfig", "NettyClientConfig"})
NAME_SERVER = frozenset({"NamesrvConfig", "NettyServerConfig", "NettyClientConfig"})
CONTROLLER = frozenset({"ControllerConfig", "NettyServerConfig", "NettyClientConfig"})
CONTAINER = frozenset({"BrokerContainerConfig", "NettyServerConfig", "NettyClientConfig"})
PROXY = frozenset({"ProxyConfig"})
"""The classes of RocketMQ whose keys a file of these programs may have."""

PROGRAMS = {
    "BrokerConfig": "brokers",
    "MessageStoreConfig": "brokers",
    "NamesrvConfig": "name servers",
    "ControllerConfig": "controllers",
    "BrokerContainerConfig": "containers",
    "ProxyConfig": "proxies",
    "ClientConfig": "clients",
}


class Foreign(NamedTuple):
    """A key of RocketMQ that a program here does not have. is_refused: its value asks for a feature that does
    not exist here; otherwise it has no effect. `why`: for the operator, with the way out if it is refused."""

    why: str
    is_refused: bool


class Names(msgspec.Struct, frozen=True):
    """The inventory. Keys: by the name of RocketMQ's class. `older_keys`: of earlier releases."""

    version: str
    keys: dict[str, tuple[str, ...]]
    older_keys: dict[str, tuple[str, ...]]
    defaults: dict[str, str]
    request_codes: dict[str, int]
    response_codes: dict[str, int]
    headers: dict[str, tuple[str, ...]]
    commands: tuple[str, ...]
    metrics: tuple[str, ...]

    def classes_of(self, key: str) -> frozenset[str]:
        """Returns the classes of RocketMQ that have, or had, a key; none: no release had it."""
        both = (*self.keys.items(), *self.older_keys.items())
        return frozenset(name for name, keys in both if key in keys)

    def keys_of(self, classes: Collection[str]) -> frozenset[str]:
        """Returns all keys that these classes of RocketMQ have, or had."""
        both = (*self.keys.items(), *self.older_keys.items())
        return frozenset(key for name, keys in both if name in classes for key in keys)


class _NoEffect(msgspec.Struct, frozen=True):
    why: str
    keys: tuple[str, ...]


class Missing(msgspec.Struct, frozen=True):
    """A feature that does not exist here. `accepted`: the values that do not ask for it, RocketMQ's default
    first."""

    accepted: tuple[str, ...]
    why: str
    instead: str


class Verdicts(msgspec.Struct, frozen=True, dict=True):
    """The content of keys.toml."""

    no_effect: tuple[_NoEffect, ...]
    missing: dict[str, Missing]
    other_default: dict[str, str]
    """Why a key that is also RocketMQ's has another default here, by the key."""

    @functools.cached_property
    def reasons(self) -> Mapping[str, str]:
        """Why a key has no effect, by the key."""
        return {key: row.why for row in self.no_effect for key in row.keys}


@functools.cache
def names() -> Names:
    """Returns the inventory of RocketMQ's names."""
    return msgspec.convert(json.loads(_text("names.json")), Names)


@functools.cache
def verdicts() -> Verdicts:
    """Returns the verdict on each key that is not one of ours."""
    return msgspec.convert(tomllib.loads(_text("keys.toml")), Verdicts)


def look_up(key: str, value: str, classes: Collection[str]) -> Foreign | None:
    """Returns what a key of RocketMQ means in a program whose file may have the keys of `classes`. None: no
    release of RocketMQ has it."""
    of_key = names().classes_of(key)
    if not of_key:
        return None
    if not of_key & set(classes):
        readers = sorted({PROGRAMS[each] for each in of_key if each in PROGRAMS})
        return Foreign(f"only {' and '.join(readers)} read it", is_refused=False)
    missing = verdicts().missing.get(key)
    if missing is None:
        return Foreign(verdicts().reasons.get(key, "it is not a setting of this program"), is_refused=False)
    if value.strip().lower() in {each.lower() for each in missing.accepted}:
        return Foreign(missing.why, is_refused=False)
    return Foreign(f"{missing.why}; {missing.instead}", is_refused=True)


def nearest(key: str, known: Collection[str], classes: Collection[str]) -> str | None:
    """Returns the key that was probably meant: one of `known`, or one that RocketMQ has in `classes`."""
    lower = {name.lower(): name for name in sorted({*names().keys_of(classes), *known})}
    word = key.lower()
    close = difflib.get_close_matches(word, lower, n=3, cutoff=0.6)
    ratios = {name: difflib.SequenceMatcher(None, name, word).ratio() for name in close}
    best = [name for name in sorted(close) if ratios[name] == max(ratios.values())]
    return lower[best[0]] if best else None  # brokerIP1 for brokerIp, rather than brokerIP2


def _text(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text()

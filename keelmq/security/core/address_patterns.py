"""Address patterns: those of plain_acl.yml (ACL 1.0), and the source IPs of ACL 2.0 (an address or CIDR).

A peer's address is given without its port. IPv4 inside of IPv6 (::ffff:10.0.0.1) counts as IPv4.
Source: RocketMQ 4.9 RemoteAddressStrategyFactory; 5.3.3 Environment, IPAddressUtils.
"""

from collections.abc import Sequence
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final

import msgspec

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network
Part = tuple[tuple[int, int], ...]
"""The ranges, ends included, that one part of an address may be in."""

ANY_TEXTS: Final = {"*", "*.*.*.*", ":".join("*" * 8)}
PATTERN_CHARS_MAX: Final = 4_096


class BadAddressPattern(ValueError):
    """The text has the pattern and what is wrong with it."""


@lru_cache(maxsize=4_096)
def peer_address(text: str) -> Address | None:
    """Returns the address of a peer; None: it is not one (an HTTP request of this process, for example)."""
    try:
        address = ip_address(text.partition("%")[0])
    except ValueError:
        return None
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return address


# -- ACL 2.0 ----------------------------------------------------------------------------------------------


def parse_source_ip(text: str) -> Network:
    """Returns the network of an IP or CIDR. Raises BadAddressPattern."""
    try:
        return ip_network(text.strip(), strict=False)
    except ValueError:
        raise BadAddressPattern(f"source IP {text[:80]!r} is neither an IP address nor a CIDR") from None


def is_in_any(address: Address | None, networks: Sequence[Network]) -> bool:
    """Whether one of the networks has the address."""
    return address is not None and any(
        address.version == network.version and address in network for network in networks
    )


# -- ACL 1.0 ----------------------------------------------------------------------------------------------


class AddressPattern(msgspec.Struct, frozen=True):
    """alternatives: per IP version, what each of the 4 or 8 parts may be. Empty: matches nobody."""

    text: str
    is_any: bool = False
    alternatives: tuple[tuple[Part, ...], ...] = ()

    def matches(self, peer_ip: str) -> bool:
        if self.is_any:
            return True
        address = peer_address(peer_ip)
        if address is None or not self.alternatives:
            return False
        parts = _parts_of(address)
        return any(
            len(parts) == len(alternative)
            and all(
                any(low <= part <= high for low, high in ranges)
                for part, ranges in zip(parts, alternative, strict=True)
            )
            for alternative in self.alternatives
        )


def _parts_of(address: Address) -> tuple[int, ...]:
    raw = address.packed
    if address.version == 4:
        return tuple(raw)
    return tuple(raw[at] << 8 | raw[at + 1] for at in range(0, 16, 2))


def parse_pattern(text: str | None) -> AddressPattern:
    """Returns the pattern of one line of plain_acl.yml. Blank: it matches nobody. Raises BadAddressPattern.

    `*`, `a.b.c.{1,2}`, `address,address`, `a.b.*`, `a.b.1-10.*`, `a.b.c.1-20`; the same for IPv6 with colons.
    """
    text = (text or "").strip()
    if not text:
        return AddressPattern(text)
    if text in ANY_TEXTS:
        return AddressPattern(text, is_any=True)
    if len(text) > PATTERN_CHARS_MAX:
        raise BadAddressPattern(
            f"an address pattern of {len(text)} characters; {PATTERN_CHARS_MAX} is the limit"
        )
    members = [text] if "{" in text else [each.strip() for each in text.split(",")]
    try:
        return AddressPattern(text, alternatives=tuple(_alternative(each) for each in members))
    except ValueError as error:
        raise BadAddressPattern(f"address pattern {first_word(text)!r}: {error}") from None


def first_word(text: str) -> str:
    """Returns what an error may show of a value. Where a quote or a line break is missing in a file, the next
    lines are part of the value, and they may have secrets."""
    return (text.split(maxsplit=1) or [""])[0][:80]


def _alternative(text: str) -> tuple[Part, ...]:
    is_ipv6 = ":" in text
    address = peer_address(text)
    if address is not None:
        return tuple(((part, part),) for part in _parts_of(address))
    count, highest, base = (8, 0xFFFF, 16) if is_ipv6 else (4, 255, 10)
    texts = _filled(text.split(":"), count) if is_ipv6 else text.split(".")
    if texts[-1] == "*":
        texts += ["*"] * (count - len(texts))
    if len(texts) != count:
        raise ValueError(f"an address has {count} parts, or fewer with * as the last one")
    parts = [_part(each, highest, base, is_last=at == count - 1) for at, each in enumerate(texts)]
    whole = ((0, highest),)
    for before, after in zip(texts, parts[1:], strict=False):
        # 10.*.0.1 is refused: after an open part everything has to be open, as RocketMQ reads it.
        if ("*" in before or "-" in before) and after != whole:
            raise ValueError("after a range or * there may only be *")
    return tuple(parts)


def _filled(texts: list[str], count: int) -> list[str]:
    """Expands `::`."""
    if texts[0] == "" and len(texts) > 1 and texts[1] == "":
        texts = texts[1:]
    if "" not in texts:
        return texts
    at = texts.index("")
    return texts[:at] + ["0"] * (count - len(texts) + 1) + texts[at + 1 :]


def _part(text: str, highest: int, base: int, *, is_last: bool) -> Part:
    if text == "*":
        return ((0, highest),)
    if text.startswith("{") and text.endswith("}"):
        if not is_last:
            raise ValueError("a list in braces may only be the last part")
        numbers = [_number(each.strip(), highest, base) for each in text[1:-1].split(",")]
        return tuple((number, number) for number in numbers)
    low_text, dash, high_text = text.partition("-")
    low = _number(low_text, highest, base)
    high = _number(high_text, highest, base) if dash else low
    if low > high:
        raise ValueError(f"{first_word(text)!r} is an empty range")
    return ((low, high),)


def _number(text: str, highest: int, base: int) -> int:
    digits = "0123456789abcdefABCDEF"[: 10 if base == 10 else None]
    if not text or len(text) > 4 or any(each not in digits for each in text):
        raise ValueError(f"{first_word(text)[:20]!r} is not a number, a range or *")
    number = int(text, base)
    if number > highest:
        raise ValueError(f"{text} is above {highest}")
    return number

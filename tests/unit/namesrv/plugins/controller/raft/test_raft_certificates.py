"""Files of certificates: every mistake is one clear line at the start; new files count without a restart."""

import logging
import os
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID
from msgspec.structs import replace

from keelmq.runtime.config import ConfigError
from namesrv.plugins.controller.raft.api import TlsFiles
from namesrv.plugins.controller.raft.transport import certificates
from namesrv.plugins.controller.raft.transport.certificates import Certificates, read_certificates
from namesrv.plugins.controller.replicator import RaftReplicator
from tests.support.raft_certificates import Authority, pem_of
from tests.support.raft_group import Group, ListMachine


def _text(files: TlsFiles, text: bytes) -> TlsFiles:
    files.key.write_bytes(text)
    return files


def _locked_key(files: TlsFiles) -> TlsFiles:
    key = ec.generate_private_key(ec.SECP256R1())
    locked = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"hush"))
    return _text(files, locked)


def _no_certificate(files: TlsFiles) -> TlsFiles:
    files.certificate.write_text("-----BEGIN CERTIFICATE-----\nbm90aGluZw==\n-----END CERTIFICATE-----\n")
    return files


MISTAKES: dict[str, tuple[Callable[[Authority, Path], TlsFiles], str]] = {
    "no such file": (
        lambda ca, root: replace(ca.issue("n0"), certificate=root / "gone"),
        "controllerRaftTlsCertPath .*gone: No such file",
    ),
    "no such key": (
        lambda ca, root: replace(ca.issue("n0"), key=root / "gone"),
        "controllerRaftTlsKeyPath .*gone: No such file",
    ),
    "no such CA": (
        lambda ca, root: replace(ca.issue("n0"), trust=root / "gone"),
        "controllerRaftTlsTrustCertPath .*gone: No such file",
    ),
    "a directory": (lambda ca, root: replace(ca.issue("n0"), key=root), "Is a directory"),
    "another's key": (lambda ca, _: replace(ca.issue("n0"), key=ca.issue("n1").key), "does not belong to"),
    "no key": (lambda ca, _: _text(ca.issue("n0"), b"nothing"), "no private key in PEM form"),
    "a key with a password": (lambda ca, _: _locked_key(ca.issue("n0")), "has a password: .*openssl pkey"),
    "no certificate": (lambda ca, _: _no_certificate(ca.issue("n0")), "no certificate in PEM form"),
    "expired": (lambda ca, _: ca.issue("n0", days=(-9, -2)), "Cert.*expired at 2"),
    "of the future": (lambda ca, _: ca.issue("n0", days=(2, 9)), "not valid before 2.*clock"),
    "a CA that expired": (
        lambda _, root: Authority(root / "old", days=(-9, -2)).issue("n0"),
        "TrustCertPath .*expired at",
    ),
    "another CA": (
        lambda ca, root: replace(ca.issue("n0"), trust=Authority(root / "other").path),
        "refused with .*another CA",
    ),
    "another CA of the same name": (
        lambda ca, root: replace(ca.issue("n0"), trust=Authority(root / "other", name="ca").path),
        "refused with .*another CA",
    ),
    "only for servers": (
        lambda ca, _: ca.issue("n0", usage=[ExtendedKeyUsageOID.SERVER_AUTH]),
        "another purpose.*for server and client",
    ),
    "only for clients": (
        lambda ca, _: ca.issue("n0", usage=[ExtendedKeyUsageOID.CLIENT_AUTH]),
        "another purpose.*for server and client",
    ),
    "another name": (
        lambda ca, _: ca.issue("n1", "n2"),
        "lacks DNS:n0, it is for n1, n2: .*keelmq certificates n0",
    ),
    "no name": (lambda ca, _: ca.issue(stem="n0"), "lacks DNS:n0, it has no DNS name"),
    "a wildcard": (lambda ca, _: ca.issue("*", stem="n0"), "lacks DNS:n0"),
}


@pytest.mark.parametrize(("make", "text"), MISTAKES.values(), ids=MISTAKES)
async def test_a_mistake_is_one_line_at_the_start(
    tmp_path: Path, make: Callable[[Authority, Path], TlsFiles], text: str
) -> None:
    files = make(Authority(tmp_path / "ca"), tmp_path)
    with pytest.raises(ConfigError, match=text) as caught:
        read_certificates(files, "n0")
    assert "\n" not in str(caught.value)
    for size in (1, 3):  # a member alone opens no port; that its files are bad it says nevertheless
        member = Group(tmp_path / f"{size}", size, secret=None, tls=files).replicator("n0", ListMachine())
        with pytest.raises(ConfigError, match=text):
            await member.start()


def test_the_names_and_the_end_of_a_certificate(tmp_path: Path) -> None:
    ca = Authority(tmp_path)
    facts = read_certificates(ca.issue("n0", "n1"), "n1").info
    assert facts.names == ("n0", "n1")
    assert 49 < facts.days_left(datetime.now(UTC)) < 51
    short = Authority(tmp_path / "short", days=(-1, 5))
    assert read_certificates(short.issue("n0"), "n0").info.days_left(datetime.now(UTC)) < 6, "its CA ends"


def test_an_end_that_is_near_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    Certificates(Authority(tmp_path).issue("n0", days=(-1, 8)), "n0")
    assert "expires in 8 days" in caplog.text


def shakes_hands(one: Certificates, other: Certificates) -> bool:
    dialer, listener = one.channel(True), other.channel(False)
    flight = dialer.start()
    for _ in range(3):
        listener.receive_data(flight)
        dialer.receive_data(listener.data_to_send())
        flight = dialer.data_to_send()
    return dialer.is_open and listener.is_open


def test_new_files_count_at_the_next_connection(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also half new ones, which a renewal leaves for a moment: the old certificate stays in use."""
    clock = [100.0]
    monkeypatch.setattr(certificates.time, "monotonic", lambda: clock[0])
    caplog.set_level(logging.INFO)
    ca = Authority(tmp_path)
    mine, other = Certificates(ca.issue("n0"), "n0"), Certificates(ca.issue("n1"), "n1")
    assert shakes_hands(mine, other)
    first = mine.info.not_after
    key = tmp_path / "n0.key"
    old_key = key.read_bytes()
    ca.issue("n0", days=(-1, 80))
    new_key = key.read_bytes()
    key.write_bytes(old_key)
    assert shakes_hands(mine, other) and shakes_hands(other, mine)
    assert mine.info.not_after == first
    assert mine.fault is not None and "does not belong" in mine.fault
    key.write_bytes(new_key)
    clock[0] += certificates.RETRY_S
    assert shakes_hands(mine, other)
    assert mine.info.not_after > first and mine.fault is None
    assert caplog.text.count("keeps its old certificate") == 1
    assert caplog.text.count("has a new certificate") == 1
    ca.issue("n0", days=(-1, 90))
    assert mine.status()["certificateEnds"] > first.timestamp() + 30 * 86_400, "also without a connection"
    key.unlink()
    assert shakes_hands(mine, other), "files that are gone"


def test_a_link_that_leads_elsewhere_is_a_new_file(tmp_path: Path) -> None:
    """As kubelet renews what it mounts: ..data is a link to a directory, and is exchanged."""
    ca, mount = Authority(tmp_path / "ca"), tmp_path / "mount"
    mount.mkdir()
    for name, days in (("old", 20), ("new", 40)):
        where = tmp_path / name
        where.mkdir()
        files = ca.issue("n0", days=(-1, days))
        for path in (files.certificate, files.key):
            (where / path.name).write_bytes(path.read_bytes())
            os.utime(where / path.name, ns=(5, 5))
    (mount / "..data").symlink_to(tmp_path / "old")
    found = Certificates(TlsFiles(mount / "..data/n0.crt", mount / "..data/n0.key", ca.path), "n0")
    (mount / "..new").symlink_to(tmp_path / "new")
    (mount / "..new").replace(mount / "..data")
    first = found.info.not_after
    found.channel(True)
    assert found.info.not_after > first


def test_a_ca_is_replaced_without_a_gap(tmp_path: Path) -> None:
    """First both CAs in everybody's file, then new certificates one by one, then only the new CA."""
    old, new, both = Authority(tmp_path / "old"), Authority(tmp_path / "new"), tmp_path / "both"
    both.write_bytes(old.pem + new.pem)
    before = [Certificates(replace(old.issue(name), trust=both), name) for name in ("n0", "n1")]
    after = [Certificates(replace(new.issue(name), trust=both), name) for name in ("n0", "n1")]
    assert all(shakes_hands(one, other) for one in before + after for other in before + after)


async def test_a_member_says_its_certificate(tmp_path: Path) -> None:
    files = Authority(tmp_path / "ca").issue("n0")
    member = Group(tmp_path, 1, secret=None, tls=files).replicator("n0", ListMachine())
    assert isinstance(member, RaftReplicator)
    await member.start()
    try:
        assert member.status()["certificateEnds"] == int(member.certificates.info.not_after.timestamp())  # type: ignore[union-attr]
        assert "certificateFault" not in member.status()
        ends = member.status()["certificateEnds"]
        Authority(tmp_path / "other").issue("n0", stem="ca")
        files.key.write_bytes((tmp_path / "other" / "ca.key").read_bytes())
        assert "does not belong to" in member.status()["certificateFault"]
        assert member.status()["certificateEnds"] == ends
    finally:
        await member.stop()


def test_the_key_is_never_shown(tmp_path: Path) -> None:
    secret = pem_of(ec.generate_private_key(ec.SECP256R1()))
    files = _text(Authority(tmp_path).issue("n0"), secret)
    with pytest.raises(ConfigError) as caught:
        read_certificates(files, "n0")
    assert secret.splitlines()[1].decode() not in str(caught.value)

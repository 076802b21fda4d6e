"""Attacks on the files of a container's host, by whoever may name a broker's file or change a setting: even
an administrator of brokers is none of the host."""

import json
import os
import socket
from pathlib import Path
from typing import Any, Final

from tests.attacks.attacker import Attacker
from tests.attacks.container import ADD, CHANGE_S, FILES, PLAN, SERVES_S, STATUS, tidy
from tests.attacks.frames import Answer
from tests.attacks.http_ports import basic
from tests.attacks.model import Outcome, attack
from tests.attacks.stage import ADMIN, MALLORY

# -- paths, even by an administrator ---------------------------------------------------------------------


def _outside(attacker: Attacker) -> Path:
    container = attacker.stage.container
    return container.broker_file(container.new_name(), container.outside)


def parent_path(attacker: Attacker) -> str:
    return f"{attacker.stage.container.brokers}/../outside/{_outside(attacker).name}"


def absolute_path(attacker: Attacker) -> str:
    return str(_outside(attacker))


def relative_path(attacker: Attacker) -> str:
    container = attacker.stage.container
    return os.path.relpath(container.broker_file(container.new_name()))


def symlinked_file(attacker: Attacker) -> str:
    link = attacker.stage.container.brokers / f"{attacker.stage.container.new_name()}.conf"
    link.symlink_to(_outside(attacker))
    return str(link)


def symlinked_directory(attacker: Attacker) -> str:
    link = attacker.stage.container.brokers / attacker.stage.container.new_name()
    outside = _outside(attacker)
    link.symlink_to(outside.parent)
    return str(link / outside.name)


def similar_directory(attacker: Attacker) -> str:
    container = attacker.stage.container
    beside = container.brokers.with_name(container.brokers.name + "-2")
    beside.mkdir(exist_ok=True)
    return str(container.broker_file(container.new_name(), beside))


def with_nul(attacker: Attacker) -> str:
    container = attacker.stage.container
    return f"{_outside(attacker)}\0{container.brokers}/inner-0.conf"


for name, title, path_of in (
    ("parent", "with .. in its path", parent_path),
    ("absolute", "elsewhere on the host", absolute_path),
    ("relative", "by a relative path", relative_path),
    ("symlink", "that is a link out of brokerConfigDirectories", symlinked_file),
    (
        "linked-directory",
        "below a directory that is a link out of brokerConfigDirectories",
        symlinked_directory,
    ),
    ("similar", "in a directory whose name begins like that of brokerConfigDirectories", similar_directory),
    ("nul", "with a NUL in its path, and the path of an allowed file behind it", with_nul),
):

    @attack(
        f"container/path-{name}",
        f"as administrator: names a broker's file {title} (902, 29032, HTTP)",
        asset=FILES,
        success="the container reads the file",
        open=False,
    )
    async def path(attacker: Attacker, path_of: Any = path_of) -> Outcome:
        await attacker.stage.open_container()
        text, power = path_of(attacker), attacker.stage.power
        added = await attacker.ask(
            "container", ADD, {"configPath": text}, by=power, proof=True, timeout_s=CHANGE_S
        )
        body = json.dumps({"configPaths": [text]}).encode()
        planned = await attacker.ask("container", PLAN, {}, body, by=power, proof=True)
        by_http = await attacker.http(
            "container", "POST", "/v1/addBroker", json={"configPath": text}, headers=basic(ADMIN)
        )
        is_read = planned.code == 0 and json.loads(planned.body)["brokers"][0]["canonicalName"]
        await tidy(attacker)
        succeeded = added.code == 0 or bool(is_read) or by_http.code == 200
        return Outcome(succeeded, f"{added}; {planned.code}; {by_http.code}")


KEY: Final = "c2VjcmV0IG9mIHRoZSByYWZ0IHBvcnQsIG5vYm9keSdzIQ=="


@attack(
    "container/secret-file",
    "as administrator: names a secret beside the brokers' files, and reads it in the refusal (902, 29032)",
    asset=FILES,
    success="an answer has the secret in it",
    open=False,
)
async def secret_file(attacker: Attacker) -> Outcome:
    container = await attacker.stage.open_container()
    answer, leaks, power = Answer(0), [], attacker.stage.power
    for number, text in enumerate(
        (KEY, f"{KEY}\n{KEY}\n", f"brokerName=x\n{KEY.rstrip('=')}\n", f"{KEY}=1\n")
    ):
        path = container.brokers / f"secret-{number}.key"
        path.write_text(text)
        body = json.dumps({"configPaths": [str(path)]}).encode()
        planned = await attacker.ask("container", PLAN, {}, body, by=power, proof=True)
        answer = await attacker.ask("container", ADD, {"configPath": str(path)}, by=power, proof=True)
        shown = f"{answer} {planned} {planned.body.decode()}"
        if KEY.rstrip("=")[:16] in shown or answer.code == 0:
            leaks.append(f"{path.name}: {answer}")
    return Outcome(bool(leaks), "; ".join(leaks) or str(answer))


def odd_files(directory: Path) -> list[Path]:
    """Returns files that are no configuration: a pipe, a socket, a directory, a terabyte, bytes."""
    pipe, large, binary, folder, unix = (
        directory / f"odd-{name}" for name in ("pipe", "large", "binary", "directory", "socket")
    )
    os.mkfifo(pipe)
    with large.open("wb") as file:
        file.truncate(1 << 40)
    binary.write_bytes(bytes(range(256)) * 1_000)
    folder.mkdir(exist_ok=True)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(os.path.relpath(unix))  # a path of a socket may have 108 bytes only
    return [pipe, unix, folder, large, binary]


@attack(
    "container/odd-files",
    "as administrator: names a pipe, a socket, a directory, a file of 1 TiB, no text (902, 29032)",
    asset="the service for others",
    success=f"the container adds one, or does not answer others within {SERVES_S:g} s",
    open=False,
)
async def odd(attacker: Attacker) -> Outcome:
    container = await attacker.stage.open_container()
    files = odd_files(container.brokers)
    try:
        return await _odd(attacker, files)
    finally:  # other attacks read every file of the stage
        for path in files:
            path.rmdir() if path.is_dir() else path.unlink()


async def _odd(attacker: Attacker, files: list[Path]) -> Outcome:
    power, said = attacker.stage.power, []
    for path in files:
        body = json.dumps({"configPaths": [str(path)]}).encode()
        planned = await attacker.ask("container", PLAN, {}, body, by=power, proof=True)
        answer = await attacker.ask("container", ADD, {"configPath": str(path)}, by=power, proof=True)
        said.append(f"{path.name}: {answer}")
        other = await attacker.stage.ask("container", STATUS, timeout_s=SERVES_S)
        if answer.code == 0 or other.code != 0 or planned.code != 0:
            return Outcome(True, f"{said[-1]}; {planned}; others: {other}")
    return Outcome(False, "; ".join(said))


# -- settings --------------------------------------------------------------------------------------------

REDIRECTING: Final = (
    "brokerConfigDirectories=/",
    "brokerConfigPaths=/tmp/evil.conf",
    "containerStatePath=/tmp/evil.json",
    "configStorePath=/tmp/evil.conf",
    "configBlackList=",
    "usersPath=/tmp",
    "securityPath=/tmp",
    "auditPath=/tmp",
    "rocketmqHome=/tmp",
    "httpTokensFile=/tmp/tokens",
    "namesrvAddr=127.0.0.9:9876",
    "authenticationEnabled=false",
    "containerProcesses=256",
    "tls.server.keyPath=/tmp/key",
    "persistBrokers=true\nbrokerConfigDirectories=/",
)


@attack(
    "container/redirected",
    "as administrator: moves the container's files, its name servers or its security elsewhere (25)",
    asset=FILES,
    success="the container takes one of the keys",
    open=False,
)
async def redirected(attacker: Attacker) -> Outcome:
    await attacker.stage.open_container()
    answer = Answer(0)
    for line in REDIRECTING:
        answer = await attacker.ask(
            "container", 25, {}, f"{line}\n".encode(), by=attacker.stage.power, proof=True
        )
        if answer.code == 0:
            return Outcome(True, f"{line!r}: {answer}")
    return Outcome(False, str(answer))


@attack(
    "container/read-secrets",
    "as administrator: reads secrets of users and members (26, 3005, 29031, HTTP)",
    asset="users and their secrets",
    success="an answer has a secret in it",
    open=False,
)
async def read_secrets(attacker: Attacker) -> Outcome:
    await attacker.stage.open_container()
    given = json.loads(attacker.stage.container.settings.get("innerClientAuthenticationCredentials", "{}"))
    secrets = [each.encode() for each in (ADMIN.secret, MALLORY.secret, given.get("secretKey", "")) if each]
    answer = Answer(0)
    for code in (26, 3005, STATUS):
        answer = await attacker.ask("container", code, by=attacker.stage.power, proof=True)
        if any(each in answer.body for each in secrets):
            return Outcome(True, f"{code} has a secret")
    by_http = await attacker.http("container", "POST", "/v1/getBrokerConfig", json={}, headers=basic(ADMIN))
    leaks = any(each in by_http.body for each in secrets)
    return Outcome(leaks, f"{answer.code}; HTTP {by_http.code}")

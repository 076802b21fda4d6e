"""`keelmq doctor`: flags, the order of the checks, output. Exit codes: 0 nothing failed, 1 something did,
2 usage.
"""

import asyncio
import json
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from cli.command_line import checked_addresses, controllers_option, print, quiet_connection_log
from cli.credentials import CredentialsOption, checked_credentials
from cli.doctor import files as config_files
from cli.doctor import machine
from cli.doctor.certificates import check_certificates
from cli.doctor.containers import inner_files
from cli.doctor.files import ConfigFile, Kind
from cli.doctor.machine import Owner, Port
from cli.doctor.port_certificates import check_port_certificates
from cli.doctor.quota import check_quota
from cli.doctor.rules import rules
from cli.doctor.security import check_security
from keelmq.client.admin import AdminClient
from keelmq.health.findings import Finding, Level, as_value, count, merged, ok, summary
from keelmq.health.group_summary import group_statuses
from keelmq.health.groups import groups
from keelmq.health.reach import Reach, Silent
from keelmq.health.snapshot import take_snapshot
from keelmq.health.verdict import verdict
from keelmq.remoting.address_text import join_address, parse_addresses, split_list
from keelmq.security.signer import Credentials

TIMEOUT_DEFAULT_MS = 1_200
"""Per request; at most four depend on each other, so dead hosts take less than 5 s."""


@dataclass(frozen=True, slots=True)
class DoctorOptions:
    """The options of the command line."""

    paths: tuple[Path, ...]
    kind: Kind | None
    name_servers: tuple[str, ...]
    controllers: tuple[str, ...]
    here: bool
    timeout_ms: int
    credentials: Credentials | None = None


def doctor(
    config: Annotated[
        list[Path] | None,
        typer.Option(
            "-c",
            "--config",
            metavar="FILE",
            help="Configuration file; may be given several times",
            readable=False,  # one that cannot be read is a finding, and the others are checked
        ),
    ] = None,
    namesrv_addr: Annotated[
        str | None,
        typer.Option(
            "-n", "--namesrvAddr", callback=checked_addresses, help="Name servers (default: from the files)"
        ),
    ] = None,
    controller_addr: Annotated[
        str | None, controllers_option("Controllers (default: from the files, or from the brokers)")
    ] = None,
    kind: Annotated[
        Kind | None, typer.Option("--kind", help="Program that the files are for (default: from their keys)")
    ] = None,
    here: Annotated[
        bool, typer.Option("--here", help="Treat the files as this machine's, whatever addresses they have")
    ] = False,
    offline: Annotated[bool, typer.Option("--offline", help="Check the files and this machine only")] = False,
    timeout_ms: Annotated[
        int, typer.Option("--timeout", min=50, help="Time limit of each request, ms")
    ] = TIMEOUT_DEFAULT_MS,
    credentials: CredentialsOption = None,
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="Print only warnings and failures")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object instead of lines")] = False,
) -> None:
    """Check configuration files, this machine and a running cluster; say what is wrong and what to do.

    Starts nothing, changes nothing. With -c it checks what those files need, and the servers that they name;
    with -n or -a what runs there.
    """
    if not config and namesrv_addr is None and controller_addr is None:
        raise typer.BadParameter("say what to check: -c FILE, -n NAMESRV or -a CONTROLLERS")
    options = DoctorOptions(
        tuple(config or ()),
        kind,
        tuple(parse_addresses(namesrv_addr)) if namesrv_addr else (),
        tuple(parse_addresses(controller_addr)) if controller_addr else (),
        here,
        timeout_ms,
        checked_credentials("keelmq", credentials),
    )
    quiet_connection_log()
    began = time.monotonic()
    findings = merged(asyncio.run(examine(options, offline=offline)))
    took_s = time.monotonic() - began
    if as_json:
        print(json.dumps(as_value(findings, took_s), ensure_ascii=False))
    else:
        for finding in findings:
            if not quiet or finding.level is not Level.OK:
                print(finding.line())
        print(summary(findings, took_s))
    raise typer.Exit(1 if count(findings, Level.FAILED) else 0)


async def examine(options: DoctorOptions, *, offline: bool = False) -> list[Finding]:
    """Returns the findings about the files, this machine and, unless `offline`, the cluster, in that
    order."""
    loaded, found = _load(options)
    found += rules(loaded)
    found += machine.check_secrets(loaded)
    found += check_certificates(loaded)
    found += check_port_certificates(loaded)
    found += check_security(loaded)
    found += config_files.environment(os.environ, loaded)
    async with Reach(options.timeout_ms, options.credentials) as reach:
        found += await _this_machine(reach, loaded, here=options.here)
        if not offline:
            found += await _cluster(reach, options, loaded)
    return found


def _load(options: DoctorOptions) -> tuple[list[ConfigFile], list[Finding]]:
    loaded, found = [], []
    short = len({path.name for path in options.paths}) == len(options.paths)
    for path in options.paths:
        file, findings = config_files.load(path, options.kind, path.name if short else str(path))
        found += findings
        if file is not None:
            loaded.append(file)
    return _with_inner(loaded, found)


def _with_inner(files: list[ConfigFile], found: list[Finding]) -> tuple[list[ConfigFile], list[Finding]]:
    """Adds the brokers of containers. If the file of such a broker was also given, it is not treated as a
    stand-alone broker's."""
    inner: list[ConfigFile] = []
    for file in files:
        if file.container is not None:
            brokers, findings = inner_files(file)
            inner += brokers
            found += findings
    listed = {each.path.resolve() for each in inner}
    return [file for file in files if file.path.resolve() not in listed] + inner, found


async def _this_machine(reach: Reach, files: Sequence[ConfigFile], *, here: bool) -> list[Finding]:
    if not files:
        return []
    ours = [here or await _is_ours(reach, machine.host_of(file)) for file in files]
    found: list[Finding] = []

    async def probe(file: ConfigFile, port: Port) -> Owner:
        return await _owner(reach, file, port)

    mine = [file for file, is_ours in zip(files, ours, strict=True) if is_ours]
    for ports in await asyncio.gather(*(machine.check_ports(file, probe) for file in mine)):
        found += ports
    for file in mine:
        found += [*machine.check_directories(file), *check_quota(file)]
    for file in files:
        if file not in mine:
            text = f"for another machine ({machine.host_of(file)}): its ports and disks were not checked"
            found.append(ok("machine.ports", file.name, text))
    return [*found, *machine.check_shared(mine), machine.check_open_files(), machine.check_compiled()]


async def _is_ours(reach: Reach, host: str) -> bool:
    """A name that does not resolve counts as another machine's; the cluster's checks report it."""
    if not host:
        return True
    try:
        return any(machine.is_ours(each) for each in await reach.resolve(host))
    except Silent:
        return False


async def _owner(reach: Reach, file: ConfigFile, port: Port) -> Owner:
    """Returns whether the program of this file answers there, or another one of its kind."""
    host = "127.0.0.1" if port.host in machine.WILDCARDS else port.host
    address = join_address(host, port.number)
    try:
        is_its_own = await _is_its_own(reach, file, port, address)
    except Silent as silent:
        return Owner.WITHHELD if silent.is_refusal or silent.was_plain else Owner.ANOTHER
    return Owner.ITSELF if is_its_own else Owner.ANOTHER


async def _is_its_own(reach: Reach, file: ConfigFile, port: Port, address: str) -> bool:
    if port.role == "controller":
        assert file.controller is not None
        metadata = await reach.ask(address, lambda admin, at: admin.controllers.controller_metadata(at))
        return metadata.group == file.controller.controller_d_leger_group
    if file.proxy is not None:
        health = (await reach.get(address, "/v1/health")).json()
        shown = str(health.get("address", "")) if isinstance(health, dict) else ""
        return shown.endswith(f":{file.proxy.grpc_server_port}")
    if file.container is not None:
        settings = await reach.ask(address, lambda admin, at: admin.brokers.broker_config(at))
        return settings.get("listenPort") == str(file.container.listen_port)
    if port.role in ("broker", "fast"):
        assert file.broker is not None
        settings = await reach.ask(address, lambda admin, at: admin.brokers.broker_config(at))
        return settings.get("storePathRootDir") == str(file.broker.store_path_root_dir)
    settings = await reach.ask(address, _namesrv_config)
    return settings.get("listenPort") == str(port.number)


async def _namesrv_config(admin: AdminClient, address: str) -> dict[str, str]:
    return await admin.name_servers.namesrv_config(address)


async def _cluster(reach: Reach, options: DoctorOptions, files: Sequence[ConfigFile]) -> list[Finding]:
    name_servers = list(options.name_servers) or _name_servers_of(files)
    controllers = list(options.controllers) or _controllers_of(files)
    if not name_servers and not controllers:
        return []
    snapshot = await take_snapshot(reach, name_servers, controllers, _http_of(files))
    return [*verdict(snapshot), *groups(snapshot, group_statuses(snapshot))]


def _name_servers_of(files: Sequence[ConfigFile]) -> list[str]:
    listed = [address for file in files if file.broker is not None for address in file.broker.name_servers]
    listed += [each for file in files if file.container is not None for each in file.container.name_servers]
    listed += [
        each for file in files if file.proxy is not None for each in split_list(file.proxy.namesrv_addr)
    ]
    if listed:
        return list(dict.fromkeys(listed))
    return [
        _dialled(file.namesrv.bind_address, file.namesrv.listen_port)
        for file in files
        if file.namesrv is not None and file.kind is Kind.NAMESRV and file.namesrv.listen_port
    ]


def _controllers_of(files: Sequence[ConfigFile]) -> list[str]:
    members = [
        _dialled(host, port)
        for file in files
        if file.controller is not None
        for host, port in file.controller.request_addresses.values()
    ]
    listed = [address for file in files if file.broker is not None for address in file.broker.controllers]
    return list(dict.fromkeys(members or listed))


def _http_of(files: Sequence[ConfigFile]) -> dict[str, str]:
    """Returns address of a name server or controller -> its HTTP address, from the files."""
    found = {}
    for file in files:
        if file.namesrv is None:
            continue
        port = machine.http_port_of(file)
        if not port:
            continue
        own = file.namesrv.http_bind_address
        host = own if own not in ("", *machine.WILDCARDS) else machine.host_of(file) or "127.0.0.1"
        if file.kind is Kind.NAMESRV:
            found[_dialled(file.namesrv.bind_address, file.namesrv.listen_port)] = _dialled(host, port)
        if file.controller is not None:
            self_host, self_port = file.controller.request_addresses[
                file.controller.controller_d_leger_self_id
            ]
            found[_dialled(self_host, self_port)] = _dialled(host, port)
    return found


def _dialled(host: str, port: int) -> str:
    return join_address("127.0.0.1" if host in machine.WILDCARDS else host, port)

"""keelmq backup controllers, keelmq restore controllers: the replicated state, as one file."""

import os
from pathlib import Path
from typing import Annotated

import typer

from cli.backup.shell import (
    ControllersOption,
    JsonOption,
    NewFile,
    read_file,
    run_requests,
    run_steps,
    show,
)
from cli.command_line import OptionalNamesrvAddr, Refused, write_new_private
from cli.credentials import CredentialsOption
from cli.mqadmin.shell import DONE
from cli.rebalance.survey import find_controllers
from keelmq.client.admin import AdminClient
from keelmq.health.findings import plural
from keelmq.runtime.clock import wall_ms
from keelmq.runtime.config import ConfigError, load_config
from namesrv.config import NamesrvConfig
from namesrv.plugins.controller.backup_file import FILE_BYTES_MAX, decode_backup, encode_backup
from namesrv.plugins.controller.config import ControllerConfig
from namesrv.plugins.controller.core.restored import RAISE_EPOCHS, RAISE_IDS
from namesrv.plugins.controller.core.state import State
from namesrv.plugins.controller.restore import RestoreError, check_targets, restored_from, write_members


def backup_controllers(
    output: NewFile,
    namesrv_addr: OptionalNamesrvAddr = None,
    controller_addr: ControllersOption = None,
    any_controller: Annotated[
        bool,
        typer.Option(
            "--any", help="Also accept the state of a controller that is not the leader; it may be older"
        ),
    ] = False,
    credentials: CredentialsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Save the state of the controllers: broker ids, epochs, SyncStateSets, settings, past elections."""
    if controller_addr is None and namesrv_addr is None:
        raise typer.BadParameter("say which servers to ask: -a CONTROLLERS, or -n NAMESRV (or NAMESRV_ADDR)")

    async def action(admin: AdminClient) -> int:
        address = controller_addr or await _controllers(admin, namesrv_addr or "")
        metadata = await admin.controllers.controller_metadata(address)
        source = address if any_controller else await admin.controllers.controller_leader(address)
        state = await admin.controllers.export_state(source)
        leader = None if any_controller else metadata.controller_leader_id
        data = encode_backup(group=metadata.group or "", leader=leader, taken_ms=wall_ms(), state=state)
        saved = decode_backup(data).decoded()  # what cannot be restored is no backup
        write_new_private(output, data)
        value = {
            "file": str(output),
            "bytes": len(data),
            "group": metadata.group,
            "groups": len(saved.brokers),
            "brokers": saved.broker_count,
            "events": saved.event_count,
            "logId": saved.log_id,
        }
        show(as_json, value, f"{output}: {_counted(saved)}, {len(data)} bytes")
        return DONE

    run_requests(action, credentials)


async def _controllers(admin: AdminClient, namesrv_addr: str) -> str:
    info = await admin.name_servers.cluster_info(namesrv_addr)
    return await find_controllers(admin, namesrv_addr, list(info.broker_addr_table.values()))


def restore_controllers(
    backup: Annotated[Path, typer.Argument(metavar="FILE", help="File that keelmq backup controllers wrote")],
    config_files: Annotated[
        list[Path],
        typer.Option(
            "-c",
            "--configFile",
            metavar="FILE",
            help="A controller's configuration: its directory is restored; may be repeated",
        ),
    ],
    raise_epochs: Annotated[
        int,
        typer.Option("--raise-epochs", min=1, help="By how much epochs grow; the same for every controller"),
    ] = RAISE_EPOCHS,
    raise_ids: Annotated[
        int,
        typer.Option(
            "--raise-ids", min=1, help="By how much next broker ids grow; the same for every controller"
        ),
    ] = RAISE_IDS,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check everything, and write nothing")] = False,
    as_json: JsonOption = False,
) -> None:
    """Write the state of a backup into the empty directories of a new controller group.

    All controllers of the lost group are stopped. Restore every member, with the same file and options,
    before the first one is started.
    """

    def steps() -> int:
        configs = {path: _controller_of(path) for path in config_files}
        try:
            check_targets(configs)
            data = read_file(backup, FILE_BYTES_MAX)
            state = restored_from(data, configs.values(), raise_epochs=raise_epochs, raise_ids=raise_ids)
            directories = [] if dry_run else write_members(configs.values(), state)
        except RestoreError as error:
            raise Refused(f"{backup}: {error}; nothing was written") from None
        except ConfigError as error:
            raise Refused(str(error)) from None
        first = next(iter(configs.values()))
        others = sorted(
            first.raft_addresses.keys() - {each.controller_d_leger_self_id for each in configs.values()}
        )
        value = {
            "directories": [str(each) for each in directories],
            "group": first.controller_d_leger_group,
            "groups": len(state.brokers),
            "brokers": state.broker_count,
            "restoreAlso": others,
        }
        lines = [f"{each}: restored, {_counted(state)}" for each in directories]
        if dry_run:
            lines.append(f"{backup} can be restored: {_counted(state)}. Nothing was written")
        if others:
            lines.append(f"restore {', '.join(others)} from the same file before any controller is started")
        else:
            lines.append("start the brokers, then the controllers")
        show(as_json, value, "\n".join(lines))
        return DONE

    run_steps(steps)


def _controller_of(path: Path) -> ControllerConfig:
    """Raises Refused."""
    if not path.is_file():
        raise Refused(f"cannot read {path}: no such file")
    try:
        _, controller = load_config(
            NamesrvConfig, ControllerConfig, path=path, environ=dict(os.environ), overrides={}
        )
    except (ConfigError, OSError, UnicodeDecodeError) as error:
        raise Refused(f"{path}: {' '.join(str(error).split())}; is it the file of a controller?") from None
    assert isinstance(controller, ControllerConfig)
    return controller


def _counted(state: State) -> str:
    return f"{plural(len(state.brokers), 'group')} with {plural(state.broker_count, 'broker')}"

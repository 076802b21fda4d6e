"""Actions that change a setting of running servers: of one broker or a whole group, of the controllers."""

from typing import Final

from pydantic import Field, field_validator

from keelmq.client.admin import AdminError
from keelmq.console.actions.action import (
    Acting,
    Action,
    Parameters,
    Preview,
    ServerOutcome,
    at_each,
    command_line,
)
from keelmq.remoting.codes import RequestCode
from keelmq.remoting.operation import Role
from keelmq.remoting.servers.http_answers import NotFound

KEYS_NAMED: Final = 5


class Setting(Parameters):
    """key, value: one line of a configuration file."""

    key: str = Field(min_length=1, max_length=200)
    value: str = Field(max_length=10_000)

    @field_validator("key", "value")
    @classmethod
    def _is_one_line(cls, text: str) -> str:
        if "\n" in text or "\r" in text:
            raise ValueError("a key and a value are single lines")
        return text

    @field_validator("key")
    @classmethod
    def _is_a_key(cls, text: str) -> str:
        if "=" in text or text.startswith("#"):
            raise ValueError("a key has no '=' and no '#' in front")
        return text


class BrokerSetting(Setting):
    """broker_id null: all replicas of the group that answer."""

    cluster: str = Field(min_length=1)
    broker_name: str = Field(min_length=1)
    broker_id: int | None = None


def _brokers(acting: Acting, request: BrokerSetting) -> list[str]:
    group = acting.group(request.cluster, request.broker_name)
    wanted = [each for each in group.replicas if request.broker_id in (None, each.broker_id)]
    if not wanted:
        ids = ", ".join(str(each.broker_id) for each in group.replicas)
        raise NotFound(f"{request.broker_name} has no broker {request.broker_id} (known: {ids})")
    return [each.address for each in wanted]


async def _preview_broker(acting: Acting, request: BrokerSetting) -> Preview:
    servers = _brokers(acting, request)
    group = acting.group(request.cluster, request.broker_name)
    before: dict[str, str | None] = {}
    warnings = []
    known: set[str] = set()
    for server in servers:
        try:
            settings = await acting.admin.brokers.broker_config(server)
        except AdminError as error:
            warnings.append(f"{server} does not tell its settings: {error.remark}")
            before[server] = None
        else:
            known |= settings.keys()
            before[server] = settings.get(request.key)
    if known and request.key not in known:
        near = sorted(key for key in known if request.key.lower() in key.lower())[:KEYS_NAMED]
        hint = f"; similar: {', '.join(near)}" if near else ""
        warnings.append(f"no broker has the key {request.key}{hint}")
    if request.broker_id is not None and len(group.replicas) > 1:
        warnings.append("only one replica changes: after a fail-over another replica's value applies")
    return Preview(
        what=f"{request.key} becomes {request.value or 'empty'} at {len(servers)} broker(s) of "
        f"{request.broker_name}, until it is changed again. A broker writes it to its file, or says why not.",
        servers=servers,
        warnings=warnings,
        command=command_line(
            "mqadmin",
            "updateBrokerConfig",
            "-b",
            ";".join(servers),
            "-k",
            request.key,
            "-v",
            value=request.value,
        ),
        details={"before": before},
    )


async def _update_broker(acting: Acting, request: BrokerSetting) -> list[ServerOutcome]:
    return await at_each(
        _brokers(acting, request),
        lambda each: acting.admin.brokers.update_broker_config(each, request.key, request.value),
    )


async def _preview_controller(acting: Acting, request: Setting) -> Preview:
    before: dict[str, str | None] = {}
    warnings = []
    for server in acting.controllers:
        try:
            before[server] = (await acting.admin.controllers.controller_config(server)).get(request.key)
        except AdminError as error:
            warnings.append(f"{server} does not tell its settings: {error.remark}")
            before[server] = None
    return Preview(
        what=f"{request.key} becomes {request.value or 'what the files say'} at all controllers. They "
        "replicate it, and keep it across restarts.",
        servers=list(acting.controllers),
        warnings=warnings,
        command=command_line(
            "mqadmin",
            "updateControllerConfig",
            "-a",
            acting.controller_list,
            "-k",
            request.key,
            "-v",
            value=request.value,
        ),
        details={"before": before},
    )


async def _update_controller(acting: Acting, request: Setting) -> list[ServerOutcome]:
    if not acting.controllers:
        raise NotFound("no controller is known")
    return await at_each(
        acting.controllers,
        lambda each: acting.admin.controllers.update_controller_config(each, request.key, request.value),
    )


UPDATE_BROKER_CONFIG: Final = Action(
    name="updateBrokerConfig",
    title="change a setting of a broker, or of a whole group",
    description="Changes a setting of running brokers: of one replica, or without brokerId of all.",
    parameters=BrokerSetting,
    role=Role.ADMINISTER,
    code=RequestCode.UPDATE_BROKER_CONFIG,
    preview=_preview_broker,
    run=_update_broker,
    example={
        "cluster": "DefaultCluster",
        "brokerName": "broker-a",
        "key": "flushDiskType",
        "value": "SYNC_FLUSH",
    },
)
UPDATE_CONTROLLER_CONFIG: Final = Action(
    name="updateControllerConfig",
    title="change a setting of the controllers",
    description="Changes a setting of all controllers; an empty value returns to that of their files.",
    parameters=Setting,
    role=Role.ADMINISTER,
    code=RequestCode.UPDATE_CONTROLLER_CONFIG,
    preview=_preview_controller,
    run=_update_controller,
    example={"key": "enableElectUncleanMaster", "value": "false"},
)
ACTIONS: Final = (UPDATE_BROKER_CONFIG, UPDATE_CONTROLLER_CONFIG)

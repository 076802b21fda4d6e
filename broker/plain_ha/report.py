"""Views of a PlainHaService: status_of() for metrics and tools, runtime_info() for getBrokerHAStatus (907).

A slave without a proved broker id is identified by its address.
"""

from broker.ha.core.master_link import MasterLink
from broker.ha.report import client_info, connection_info, replica_status, slave_status
from broker.plain_ha.service import PlainHaService
from keelmq.remoting.operations.broker import HaClientRuntimeInfo, HaRuntimeInfo


def status_of(ha: PlainHaService) -> dict[str, object]:
    """Returns the state as JSON values, with the keys of broker/ha/report.py that have a meaning without
    controllers. inSync: copies that are in sync, the master's included."""
    common: dict[str, object] = {
        "maxOffset": ha.store.commit_log.max_offset,
        "confirmOffset": ha.store.confirm_offset,
        "fault": ha.fault,
    }
    if ha.is_slave:
        found = {"connected": False, "bytesBehind": 0} if ha.client is None else slave_status(ha.client)
        return common | {"role": "slave"} | found
    replicas = [
        replica_status(ha, link, broker_id=number, in_sync=_is_in_sync(ha, link))
        for number, link in sorted(ha.links.items())
    ]
    return common | {"role": "master", "inSync": ha.in_sync_count, "replicas": replicas}


def runtime_info(ha: PlainHaService) -> HaRuntimeInfo:
    """Returns the body of 907. `fault`, which RocketMQ's tools skip: why a slave does not copy."""
    if ha.is_slave:
        client = client_info(ha, ha.client) if ha.client is not None else HaClientRuntimeInfo()
        return HaRuntimeInfo(master=False, ha_client_runtime_info=client, fault=ha.fault)
    return HaRuntimeInfo(
        master=True,
        master_commit_log_max_offset=ha.store.commit_log.max_offset,
        in_sync_slave_nums=ha.in_sync_count - 1,
        ha_connection_info=[
            connection_info(ha, link, broker_id=number if number > 0 else None, in_sync=_is_in_sync(ha, link))
            for number, link in sorted(ha.links.items())
        ],
    )


def _is_in_sync(ha: PlainHaService, link: MasterLink) -> bool:
    return ha.rules.is_in_sync(link.ack_offset, ha.store.commit_log.max_offset)

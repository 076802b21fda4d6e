"""Name-server operations on persistent state: KV configuration and the server's settings.

Source: RocketMQ 5.3.3, PutKVConfig*, GetKVConfig*, GetKVListByNamespace*; 318 and 319 carry properties text.
"""

from keelmq.remoting.operation import Operation, Wire
from keelmq.remoting.operations.route import KVTable


class PutKVConfigRequest(Wire):
    """Header of 100. The handler refuses a missing namespace or key, with RocketMQ's remark."""

    namespace: str | None = None
    key: str | None = None
    value: str = ""


class KVConfigKey(Wire):
    """Header of 101 and 102."""

    namespace: str
    key: str


class GetKVConfigResponse(Wire):
    """Response header of 101."""

    value: str


class KVNamespaceRequest(Wire):
    """Header of 219."""

    namespace: str


class NamesrvConfigResponse(Wire):
    """Response header of 319. Ours: keelmq_version, of the program."""

    keelmq_version: str = ""


PUT_KV_CONFIG = Operation(100, "putKVConfig", PutKVConfigRequest)
GET_KV_CONFIG = Operation(101, "getKVConfig", KVConfigKey, GetKVConfigResponse)
DELETE_KV_CONFIG = Operation(102, "deleteKVConfig", KVConfigKey)
GET_KV_LIST_BY_NAMESPACE = Operation(219, "getKVListByNamespace", KVNamespaceRequest, response_body=KVTable)
UPDATE_NAMESRV_CONFIG = Operation(318, "updateNamesrvConfig", request_body=bytes)
GET_NAMESRV_CONFIG = Operation(319, "getNamesrvConfig", response=NamesrvConfigResponse, response_body=bytes)

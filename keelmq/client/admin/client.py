"""AdminClient: one client with a part for each kind of server and of object."""

from keelmq.client.admin.auth import AuthAdmin
from keelmq.client.admin.brokers import BrokerAdmin
from keelmq.client.admin.containers import ContainerAdmin
from keelmq.client.admin.controllers import ControllerAdmin
from keelmq.client.admin.groups import GroupAdmin
from keelmq.client.admin.messages import MessageAdmin
from keelmq.client.admin.name_servers import NameServerAdmin
from keelmq.client.admin.store_copies import StoreCopyAdmin
from keelmq.client.admin.transport import AdminTransport
from keelmq.remoting.client import RemotingClient
from keelmq.runtime.tls.contexts import Tls
from keelmq.security.signer import Credentials


class AdminClient(AdminTransport):
    """`async with AdminClient() as admin: await admin.name_servers.cluster_info("host:9876")`. The parts
    share connections, credentials and `timeout_ms`."""

    def __init__(
        self,
        client: RemotingClient | None = None,
        *,
        timeout_ms: int | None = None,
        tls: Tls = False,
        credentials: Credentials | None = None,
    ) -> None:
        super().__init__(client, timeout_ms=timeout_ms, tls=tls, credentials=credentials)
        self.name_servers = NameServerAdmin(self.client, timeout_ms=timeout_ms)
        self.controllers = ControllerAdmin(self.client, timeout_ms=timeout_ms)
        self.brokers = BrokerAdmin(self.client, timeout_ms=timeout_ms)
        self.containers = ContainerAdmin(self.client, timeout_ms=timeout_ms)
        self.groups = GroupAdmin(self.client, timeout_ms=timeout_ms)
        self.messages = MessageAdmin(self.client, timeout_ms=timeout_ms)
        self.auth = AuthAdmin(self.client, timeout_ms=timeout_ms)
        self.store_copies = StoreCopyAdmin(self.client, timeout_ms=timeout_ms)

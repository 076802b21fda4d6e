"""AdminClient: the requests of operators and tools to name servers, controllers and brokers, one method each.

By server: name_servers.py, controllers.py, brokers.py, containers.py; consumer groups: groups.py; users and
ACLs: auth.py; messages: messages.py; backups and checksums of stores: store_copies.py; what several servers
are asked for: places.py, resets.py, changes.py; transport: transport.py.
"""

from keelmq.client.admin.auth import AuthAdmin
from keelmq.client.admin.brokers import BrokerAdmin
from keelmq.client.admin.changes import ChangeAdmin
from keelmq.client.admin.containers import ContainerAdmin
from keelmq.client.admin.controllers import ControllerAdmin
from keelmq.client.admin.groups import GroupAdmin
from keelmq.client.admin.messages import MessageAdmin
from keelmq.client.admin.name_servers import NameServerAdmin
from keelmq.client.admin.resets import ResetAdmin
from keelmq.client.admin.store_copies import StoreCopyAdmin
from keelmq.client.admin.transport import ADMIN_TIMEOUT_MS, STAGGER_MS, AdminError, ServerResult, gather_some

__all__ = ["ADMIN_TIMEOUT_MS", "STAGGER_MS", "AdminClient", "AdminError", "ServerResult", "gather_some"]


class AdminClient(
    ChangeAdmin,
    NameServerAdmin,
    ControllerAdmin,
    ResetAdmin,
    BrokerAdmin,
    ContainerAdmin,
    GroupAdmin,
    MessageAdmin,
    AuthAdmin,
    StoreCopyAdmin,
):
    """Usage: `async with AdminClient() as admin: await admin.cluster_info("host:9876")`."""

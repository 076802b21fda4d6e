"""AdminClient: the requests of operators and tools to name servers, controllers and brokers, one method each.

By server: name_servers.py, controllers.py, brokers.py; consumer groups: groups.py. transport.py sends them.
"""

from keelmq.client.admin.brokers import BrokerQuestions
from keelmq.client.admin.controllers import ControllerQuestions
from keelmq.client.admin.groups import GroupQuestions
from keelmq.client.admin.name_servers import NameServerQuestions
from keelmq.client.admin.transport import ADMIN_TIMEOUT_MS, STAGGER_MS, AdminError, Said, gather_some

__all__ = ["ADMIN_TIMEOUT_MS", "STAGGER_MS", "AdminClient", "AdminError", "Said", "gather_some"]


class AdminClient(NameServerQuestions, ControllerQuestions, BrokerQuestions, GroupQuestions):
    """`async with AdminClient() as admin: await admin.cluster_info("host:9876")`."""

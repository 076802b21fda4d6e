"""AdminClient: what operators and tools ask of name servers, controllers and brokers, a method each.

By theme: name_servers.py, controllers.py, brokers.py, groups.py; how they are asked: asking.py.
"""

from client.admin.asking import ADMIN_TIMEOUT_MS, STAGGER_MS, AdminError, Said, gather_some
from client.admin.brokers import BrokerQuestions
from client.admin.controllers import ControllerQuestions
from client.admin.groups import GroupQuestions
from client.admin.name_servers import NameServerQuestions

__all__ = ["ADMIN_TIMEOUT_MS", "STAGGER_MS", "AdminClient", "AdminError", "Said", "gather_some"]


class AdminClient(NameServerQuestions, ControllerQuestions, BrokerQuestions, GroupQuestions):
    """`async with AdminClient() as admin: await admin.cluster_info("host:9876")`."""

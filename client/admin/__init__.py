"""AdminClient: what operators and tools ask of name servers, controllers and brokers; one method per question.

By theme: name_servers.py, controllers.py, brokers.py; how they are asked: asking.py.
"""

from client.admin.asking import (
    ADMIN_TIMEOUT_MS as ADMIN_TIMEOUT_MS,
)
from client.admin.asking import (
    STAGGER_MS as STAGGER_MS,
)
from client.admin.asking import (
    AdminError as AdminError,
)
from client.admin.asking import (
    Said as Said,
)
from client.admin.asking import (
    gather_some as gather_some,
)
from client.admin.brokers import BrokerQuestions
from client.admin.controllers import ControllerQuestions
from client.admin.name_servers import NameServerQuestions


class AdminClient(NameServerQuestions, ControllerQuestions, BrokerQuestions):
    """`async with AdminClient() as admin: await admin.cluster_info("host:9876")`."""

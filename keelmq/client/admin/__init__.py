"""AdminClient: the requests of operators and tools to name servers, controllers and brokers, one method each.

Its parts have the names of the modules: name_servers, controllers, brokers, containers, groups (with their
members and offsets), messages, auth (users and ACLs), store_copies (backups and checksums). Functions for
what takes requests to several servers: places.py, progress.py, changes.py.
"""

from keelmq.client.admin.client import AdminClient
from keelmq.client.admin.transport import ADMIN_TIMEOUT_MS, STAGGER_MS, AdminError, ServerResult, gather_some

__all__ = ["ADMIN_TIMEOUT_MS", "STAGGER_MS", "AdminClient", "AdminError", "ServerResult", "gather_some"]

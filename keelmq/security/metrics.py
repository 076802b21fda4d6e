"""Metrics of security, equal in all programs: refused requests, the audit log, TLS.

Imported only when HTTP is enabled: it needs prometheus_client.
"""

from typing import get_args

from keelmq.remoting.operation import Access
from keelmq.remoting.servers.metrics import Metric, Scrape, Table
from keelmq.runtime.tls.contexts import ClientTls, ServerTls
from keelmq.security.audit.log import AuditLog
from keelmq.security.core.refusals import Reason
from keelmq.security.server_access import ServerAccess

TABLE = Table(
    "Every program: security",
    (),
    (
        Metric(
            "rocketmq_access_refusals_total",
            "requests that the access check has refused: unsigned, signature (a wrong one), user (unknown or "
            "disabled), throttled (too many failures of this address), member (for members only), proof "
            "(none, or an old one), rights, unreadable",
            ("reason",),
        ),
        Metric("rocketmq_audit_lines_total", "lines written into the audit log"),
        Metric(
            "rocketmq_audit_dropped_lines_total", "lines of the audit log lost: a full queue or a full disk"
        ),
        Metric(
            "rocketmq_audit_unwritten_refusals_total", "refused requests beyond the limit of lines per second"
        ),
        Metric("rocketmq_audit_fault", "1 while the audit log cannot be written, else 0"),
        Metric(
            "rocketmq_tls_certificate_end_seconds",
            "when the first certificate of a file expires, since 1970: server (of our ports), client (of our "
            "connections); only of files",
            ("use",),
        ),
        Metric(
            "rocketmq_tls_fault",
            "1 while changed files of certificates cannot be used and the old ones still are, else 0",
            ("use",),
        ),
        Metric(
            "rocketmq_tls_connections_total",
            "accepted connections by what came of them: handshakes, failed, timed_out, evicted (too many "
            "waited), plain_refused, tls_refused; plain connections that are served are not counted",
            ("port", "result"),
        ),
    ),
)


def scrape(
    access: Access | None, audit: AuditLog | None, server_tls: ServerTls, client_tls: ClientTls | None
) -> Scrape:
    """Returns the present values. Called in the event loop's thread. access None: everybody is served. audit
    None: it is off. client_tls None: our connections are plain."""
    made = Scrape(TABLE, ())
    if isinstance(access, ServerAccess):
        for reason in get_args(Reason):  # also those without any: a rate needs a first value
            made.add("rocketmq_access_refusals_total", access.refusals[reason], reason)
    if audit is not None:
        writer = audit.writer
        made.add("rocketmq_audit_lines_total", writer.written_lines)
        made.add("rocketmq_audit_dropped_lines_total", writer.dropped_lines)
        made.add("rocketmq_audit_unwritten_refusals_total", audit.unwritten_refusals)
        made.add("rocketmq_audit_fault", writer.fault is not None)
    for use, tls in (("server", server_tls), ("client", client_tls)):
        if tls is not None and tls.expires is not None:
            made.add("rocketmq_tls_certificate_end_seconds", tls.expires.timestamp(), use)
            made.add("rocketmq_tls_fault", tls.fault is not None, use)
    for port, counts in sorted(server_tls.counts.items()):
        for result, count in sorted(counts.items()):
            made.add("rocketmq_tls_connections_total", count, port, result)
    return made

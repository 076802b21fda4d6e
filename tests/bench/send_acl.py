"""Suite send_acl: CPU time of the broker per signed send with authentication and authorization, against the
same sends without; and the same over TLS, against plain TCP without both.

One client for all, which writes requests in flight in one go and reads their replies: only the broker's CPU
time is measured. Lower is better; the goal is 1.25. With many in flight a broker without a check needs a few
microseconds for a send, and a signature costs a good part of that; the stateful strategy checks it once a
minute. Both brokers get the same signed frames, and users and ACLs do not change meanwhile.
"""

import json
import os
import tempfile
from pathlib import Path

from keelmq.security.core.signature import signed
from tests.bench.frames import EXT_FIELDS, send_frame
from tests.bench.report import Measurement, Results, median
from tests.bench.send_tls import BODY_BYTES, cost_us
from tests.bench.servers import LOAD_CPU, Shape, lone_broker

USER, SECRET = "benchmark", "a secret of the benchmark"
MEMBER = {"accessKey": "member", "secretKey": "a secret of members"}
SETTINGS = {
    "authenticationEnabled": "true",
    "authorizationEnabled": "true",
    "initAuthenticationUser": json.dumps({"username": USER, "password": SECRET}),
    "innerClientAuthenticationCredentials": json.dumps(MEMBER),
}
STATEFUL = {"authenticationStrategy": "StatefulAuthenticationStrategy"}
PAIRS = 5
ONE, MANY = Shape(1, 1), Shape(1, 64)


def signed_frame() -> bytes:
    """The send of all benchmarks, signed."""
    plain, body = send_frame(BODY_BYTES), b"x" * BODY_BYTES
    header = json.loads(plain[8 : -len(body)])
    header["extFields"] = signed(USER, SECRET, EXT_FIELDS, body)
    text = json.dumps(header, separators=(",", ":")).encode()
    return (4 + len(text) + len(body)).to_bytes(4) + len(text).to_bytes(4) + text + body


def run() -> Results:
    """All brokers run all the time; they take turns."""
    os.sched_setaffinity(0, {LOAD_CPU})
    found: Results = {}
    with (
        tempfile.TemporaryDirectory(prefix="keelmq-bench-") as directory,
        lone_broker(Path(directory) / "open") as without,
        lone_broker(Path(directory) / "closed", SETTINGS) as always,
        lone_broker(Path(directory) / "stateful", SETTINGS | STATEFUL) as stateful,
    ):
        frame = signed_frame()
        for name, guarded, shape, tls in (
            ("acl_1x1", always, ONE, False),
            ("acl_1x64", always, MANY, False),
            ("acl_stateful_1x64", stateful, MANY, False),
            ("acl_tls_1x1", always, ONE, True),
            ("acl_tls_1x64", always, MANY, True),
        ):
            pairs = [
                (
                    cost_us(guarded, shape, tls=tls, frame=frame),
                    cost_us(without, shape, tls=False, frame=frame),
                )
                for _ in range(PAIRS)
            ]
            checked, unchecked = (median(each) for each in zip(*pairs, strict=True))
            ratio = median(guarded_us / without_us for guarded_us, without_us in pairs)
            found[name] = Measurement(checked, "us/send", unchecked, ratio)
    return found

"""An S3-compatible server in this process."""

import contextlib
import logging
import urllib.request
from collections.abc import Iterator


@contextlib.contextmanager
def s3_server() -> Iterator[str]:
    """Yields the URL of an empty bucket."""
    from moto.server import ThreadedMotoServer  # slow: every worker would import it to collect the tests

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        _, port = server.get_host_and_port()
        # the buckets are of the process, not of the server
        reset = urllib.request.Request(f"http://127.0.0.1:{port}/moto-api/reset", method="POST")
        urllib.request.urlopen(reset, timeout=10).close()
        options = f"endpoint_override=127.0.0.1:{port}&scheme=http&region=us-east-1"
        yield f"s3://key:secret@bucket/%s?{options}&allow_bucket_creation=true"
    finally:
        server.stop()

"""A stand-in for a server: says so, waits for a signal. With "fail" in its configuration it ends at once."""

import signal
import sys
from pathlib import Path

if "fail=true" in Path(sys.argv[2]).read_text():
    sys.exit("cannot listen on port 1")
print("up", flush=True)
signal.pause()

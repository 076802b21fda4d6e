"""The garbage collector around the start of a program, in a process of its own: it is one for all tests."""

import subprocess
import sys

CODE = """
import gc
from keelmq.runtime.quick_start import settle_collector, quick_imports

before = gc.get_freeze_count()
try:
    with quick_imports():
        assert not gc.isenabled()
        made = [[] for _ in range(5_000)]
        raise ImportError
except ImportError:
    pass
assert gc.isenabled() and gc.get_freeze_count() >= before + 5_000, gc.get_freeze_count()
cycle = []
cycle.append(cycle)
del cycle
settle_collector()
assert gc.collect() == 0 and gc.get_threshold()[0] == 20_000, gc.get_threshold()
print("done")
"""


def test_imports_are_never_looked_at_and_what_follows_is() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("done\n", "")


CTRL_C = """
from keelmq.runtime.quick_start import quick_imports

with quick_imports():
    raise KeyboardInterrupt
"""


def test_ctrl_c_during_the_imports_is_no_traceback() -> None:
    done = subprocess.run([sys.executable, "-c", CTRL_C], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (130, "")

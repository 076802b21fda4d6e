"""Fixtures of several files."""

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.support.raft_attackers import Outfit


@pytest.fixture(params=["key", "tls"])
def outfit(request: pytest.FixtureRequest, tmp_path: Path) -> "Outfit":
    """How the members of a raft group prove themselves: tests of the port run with both."""
    from tests.support.raft_attackers import KeyOutfit, TlsOutfit  # imported here: few tests want it

    return KeyOutfit(tmp_path) if request.param == "key" else TlsOutfit(tmp_path)

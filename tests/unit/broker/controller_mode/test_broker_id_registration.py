"""What a broker says of itself when it registers (1003)."""

from pathlib import Path
from typing import Any

import pytest

from broker.controller_mode.broker_id_registration import Identity
from broker.controller_mode.broker_meta_file import MetaFiles
from keelmq.remoting.operations.controller import (
    REGISTER_BROKER_TO_CONTROLLER,
    RegisterBrokerToControllerRequest,
)
from tests.unit.broker.controller_mode.test_replicas_manager import FakeController


async def epoch_said(directory: Path, last_epoch: int | None) -> tuple[int | None, int | None]:
    """Of the first 1003, and of one later in the same process."""
    controller: Any = FakeController()
    files, said = MetaFiles(directory, cluster_name="C", broker_name="b"), list[int | None]()
    identity = Identity(
        files,
        controller,
        cluster_name="C",
        broker_name="b",
        broker_address=lambda: "me:1",
        on_registered=lambda: None,
        last_epoch=lambda: last_epoch,
    )
    identity.load()
    for register in (identity.settle, identity.register_again):
        await register()
        request = controller.last[REGISTER_BROKER_TO_CONTROLLER.code]
        assert isinstance(request, RegisterBrokerToControllerRequest)
        said.append(request.epoch)
    return said[0], said[1]


@pytest.mark.parametrize("last_epoch", [None, 4])
async def test_who_has_just_got_its_id_has_led_nothing(tmp_path: Path, last_epoch: int | None) -> None:
    assert await epoch_said(tmp_path, last_epoch) == (0, last_epoch)


@pytest.mark.parametrize("last_epoch", [None, 4])
async def test_who_has_had_one_says_what_its_log_knows(tmp_path: Path, last_epoch: int | None) -> None:
    """docs/adr/0016: a lost epoch file is no proof that nothing was written."""
    await epoch_said(tmp_path, None)
    assert await epoch_said(tmp_path, last_epoch) == (last_epoch, last_epoch)

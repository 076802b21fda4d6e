"""What a broker says of itself when it registers (1003)."""

from pathlib import Path

import pytest

from broker.controller_mode.broker_meta_file import BrokerMetaError, MetaFiles
from keelmq.remoting.operations.controller import (
    REGISTER_BROKER_TO_CONTROLLER,
    RegisterBrokerToControllerRequest,
)
from tests.support.file_damage import DAMAGE, content_of, put_back, times_of, tries
from tests.unit.broker.controller_mode.test_replicas_manager import FakeController, identity_at


async def epoch_said(directory: Path, last_epoch: int | None) -> tuple[int | None, int | None]:
    """Of the first 1003, and of one later in the same process."""
    controller, said = FakeController(), list[int | None]()
    identity = identity_at(directory, controller, last_epoch)
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


@pytest.mark.parametrize("last_epoch", [None, 4])
async def test_a_lost_identity_is_named(
    tmp_path: Path, last_epoch: int | None, caplog: pytest.LogCaptureFixture
) -> None:
    """A new id is what a new disk gets; a disk with epochs had one."""
    await epoch_said(tmp_path, last_epoch)
    told = f"{tmp_path / '.broker.meta'} is missing, although the log has epochs up to 4"
    assert (told in caplog.text) is (last_epoch == 4)
    caplog.clear()
    await epoch_said(tmp_path, last_epoch)
    assert "missing" not in caplog.text


@pytest.mark.parametrize("kind", [kind for kind in DAMAGE if kind != "lose"])
@pytest.mark.parametrize("name", [".broker.meta", ".broker.meta.temp"])
def test_a_damaged_identity_is_refused(tmp_path: Path, name: str, kind: str) -> None:
    files = MetaFiles(tmp_path, cluster_name="C", broker_name="b")
    files.write_temp(7, "me:1;5")
    if name == ".broker.meta":
        files.replace_temp_by_meta()
    whole, times = content_of(tmp_path), times_of(tmp_path)
    for dice in tries(kind, 200):
        DAMAGE[kind](tmp_path / name, dice)
        damaged = content_of(tmp_path)
        try:
            found = next(each for each in files.load() if each is not None)
            assert found.broker_id == 7 and found.register_check_code == "me:1;5"  # the line end
        except BrokerMetaError as error:
            assert f"{tmp_path / name} is damaged" in str(error) and "restore it from a backup" in str(error)
        assert content_of(tmp_path) == damaged
        put_back(tmp_path, whole, times)

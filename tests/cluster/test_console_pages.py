"""The console of a real cluster in a real browser: a fail-over, and an election by the keyboard alone."""

import json
from pathlib import Path

import pytest

from keelmq.runtime.clock import wall_ms
from tests.support.console_browser import console_for, drive, driving, why_not
from tests.support.harness import Harness

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.skipif(bool(why_not()), reason=why_not()),
]
SEEN_MS_MAX = 1_000
"""Promised: so long after it serves, the new master is on the page."""
LOADED = 5
GROUP = "broker-a"
PAGE = f"/groups/KeelCluster/{GROUP}"


async def broker_ids(running: Harness) -> dict[str, int]:
    """Returns the name of each broker's program -> its id."""
    picture = await running.all_in_sync()
    return {each.name: each.broker_id for each in picture.replicas if each.broker_id is not None}


async def test_the_new_master_is_on_the_page_soon_after_it_serves(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with Harness(tmp_path) as running, console_for(running.cluster.namesrv_addr) as address:
        running.produce()
        await running.acked(100)
        ids = await broker_ids(running)
        master = await running.master()
        lines = driving("master", address, PAGE)
        try:
            before = json.loads(await anext(lines))
            assert before["master"] == f"broker {ids[master.name]}"
            running.cluster.kill(master)
            served = await running.new_master(master)
            served_ms = wall_ms()
            after = json.loads(await anext(lines))
        finally:
            await lines.aclose()
        assert after["master"] == f"broker {ids[served.name]}"
        late_ms = after["atMs"] - served_ms
        with capsys.disabled():
            print(f"\nthe page showed the new master {late_ms} ms after it served")
        assert late_ms < SEEN_MS_MAX * LOADED


async def test_elect_by_the_keyboard_alone(tmp_path: Path) -> None:
    async with Harness(tmp_path) as running, console_for(running.cluster.namesrv_addr) as address:
        ids = await broker_ids(running)
        master = await running.master()
        wanted = next(each for name, each in ids.items() if name != master.name)
        (seen,) = await drive("elect", address, GROUP, str(wanted))
        assert f"Broker {wanted} " in seen["preview"] and "becomes the master" in seen["preview"]
        assert seen["command"].startswith("mqadmin electMaster -a ")
        assert "Done." in seen["outcome"]
        assert seen["focus"] == "Elect a master …", "the focus is where it was before the dialog"
        assert seen["errors"] == seen["broken"] == []
        assert ids[(await running.master()).name] == wanted


async def test_every_page_of_a_real_cluster(tmp_path: Path) -> None:
    """What is only asked when a page is open: epochs, elections, settings, containers."""
    tabs = ("", "?tab=charts", "?tab=elections", "?tab=epochs", "?tab=settings")
    routes = [*(f"{PAGE}{tab}" for tab in tabs), "/elections", "/controllers", "/containers"]
    async with Harness(tmp_path) as running, console_for(running.cluster.namesrv_addr) as address:
        running.produce()
        await running.acked(100)
        seen = await drive("look", address, json.dumps(routes))
    wrong = [f"{each['mode']} {each['route']}: {each['errors'] + each['broken']}" for each in seen]
    assert [each for each in wrong if not each.endswith(": []")] == []
    texts = {each["route"]: each["text"] for each in seen if each["mode"] == "light"}
    assert "The master stays." in texts[f"{PAGE}?tab=elections"]
    assert "first election" in texts["/elections"]
    assert "– now" in texts[f"{PAGE}?tab=epochs"] and "Slave" in texts[f"{PAGE}?tab=epochs"]
    assert "aclEnable" in texts[f"{PAGE}?tab=settings"]
    assert "No container was found." in texts["/containers"]

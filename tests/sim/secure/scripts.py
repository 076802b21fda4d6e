"""Fixed stories of secure groups, for what dice show too seldom."""

from tests.sim.secure.users import UserAdministrator
from tests.sim.secure.world import SecureGroup
from tests.sim.whole.group import seconds


async def _quiet(world: SecureGroup) -> tuple[str, UserAdministrator]:
    """The master's name, and the administrator of users, who does nothing by itself any more."""
    await world.begin()
    master = (await world.whole()).name
    admin = next(each for each in world.clients if isinstance(each, UserAdministrator))
    admin.stopping = True
    world.on_path.end()  # no request is held back: each change is acknowledged
    await seconds(2.0)
    admin.address_index, admin.told = world.addresses().index(world.brokers[master].address), None
    return master, admin


async def users_before_a_switch(world: SecureGroup) -> None:
    """Users change; then nothing reaches the replicas any more, and the master dies before it has noticed."""
    master, admin = await _quiet(world)

    async def changes(count: int) -> None:
        for _ in range(count):
            await admin.change()

    await world.do(admin, changes(6))
    world.cut([master], world.others(master))
    world.do(admin, changes(3))
    await seconds(0.3)
    world.kill(master)
    world.network.mend()
    await world.until(lambda: world.master is not None, 5.0)
    await world.conclude()


async def a_name_is_used_again(world: SecureGroup) -> None:
    """A user with rights is deleted, another one gets its name; then the master changes."""
    master, admin = await _quiet(world)
    for change in (admin.create, admin.rights, admin.delete, admin.create):
        await world.do(admin, change("carol"))
    world.kill(master)
    await world.until(lambda: world.master is not None, 5.0)
    await world.conclude()
    assert "carol" in world.users.known, "every change was acknowledged"


async def rights_are_taken(world: SecureGroup) -> None:
    """What was allowed before is refused after it, by the same broker and by the next."""
    master, admin = await _quiet(world)
    for change in (admin.create, admin.rights, admin.no_rights, admin.rights, admin.delete):
        await world.do(admin, change("carol"))
    world.kill(master)
    await world.until(lambda: world.master is not None, 5.0)
    await world.conclude()
    assert "carol" in world.users.known, "every change was acknowledged"

"""A host in the network that is no member: sends requests that nobody has signed, that it has signed itself,
or that it has captured; begins HA links; answers in the place of hosts that are down.

What must not happen: a request of its own succeeds, somebody connects to its address, it gets a byte of a
log, a slave follows it. What it captured is judged by Admissions.
"""

import asyncio
from collections import Counter
from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, Any

from broker.ha.core.frames import SlaveHandshake
from broker.ha.core.hello import (
    BODY_BYTES,
    CHALLENGE,
    HEAD,
    HELLO,
    MAGIC,
    NONCE_BYTES,
    PROOF,
    PROOF_BYTES,
    Group,
    SlaveHello,
    packet,
)
from keelmq.remoting.client import RemotingClient
from keelmq.remoting.command import RemotingCommand, encode, request_command
from keelmq.remoting.operation import Ok, Operation, Wire
from keelmq.remoting.operations.auth import AUTH_CREATE_USER, AUTH_DELETE_USER, UserInfo, UserRequest
from keelmq.remoting.operations.controller import (
    ALTER_SYNC_STATE_SET,
    APPLY_BROKER_ID,
    CLEAN_BROKER_DATA,
    ELECT_MASTER,
    GET_NEXT_BROKER_ID,
    HAND_OVER,
    NOTIFY_BROKER_ROLE_CHANGED,
    REGISTER_BROKER_TO_CONTROLLER,
    AlterSyncStateSetRequest,
    ApplyBrokerIdRequest,
    BrokerSetRequest,
    CleanBrokerDataRequest,
    ElectMasterRequest,
    HandOverRequest,
    NotifyBrokerRoleChangedRequest,
    RegisterBrokerToControllerRequest,
    SyncStateSet,
)
from keelmq.remoting.operations.route import BROKER_HEARTBEAT, BrokerHeartbeatRequest
from keelmq.security.signer import Credentials, signer_of
from tests.sim.checkers import Violation
from tests.sim.secure.keys import ADMIN, MEMBER, ROOT
from tests.sim.secure.on_path import HA_PORT, Captured, OnPath, altered
from tests.sim.whole.machines import Process
from tests.sim.whole.programs import (
    BROKER_PORT,
    CLUSTER,
    CONTROLLER_PORT,
    CONTROLLERS,
    GROUP,
    NAMESRV_PORT,
)

if TYPE_CHECKING:
    from tests.sim.secure.world import SecureGroup

HOST = "10.6.6.6"
ANSWER_MS = 1_500
GUESSES = (
    None,
    Credentials(MEMBER.access_key, "a guess"),
    Credentials(ADMIN.access_key, "a guess"),
    Credentials(ROOT.access_key, "a guess"),
    Credentials("nobody", "a secret of its own"),
)


class Raw(asyncio.Protocol):
    """A connection that keeps what it gets."""

    def __init__(self, on_data: "Callable[[Raw, bytes], None] | None" = None) -> None:
        self.got = bytearray()
        self.transport: Any = None
        self.closed = asyncio.get_running_loop().create_future()
        self._on_data = on_data

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    @property
    def peer(self) -> str:
        """The host at the other end."""
        return str(self.transport.get_extra_info("peername")[0])

    def data_received(self, data: bytes) -> None:
        self.got += data
        if self._on_data is not None:
            self._on_data(self, data)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.closed.done():
            self.closed.set_result(None)


class Attacker:
    """`counts`: what it has tried, by kind. `won`: what it should not have got."""

    def __init__(self, world: "SecureGroup", on_path: OnPath) -> None:
        self.world, self.on_path, self.dice = world, on_path, Random(f"attacker {world.seed}")
        self.process = Process(world.loop, "attacker", HOST)
        self.counts: Counter[str] = Counter()
        self.won: list[str] = []
        self.stopping = False
        self._taken: dict[str, Process] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self.process.run(self._main)

    def raise_problem(self) -> None:
        if self.won:
            raise Violation("; ".join(self.won[:3]))

    async def _main(self) -> None:
        self.clients = [
            RemotingClient(
                connect_timeout_ms=500,
                drop_silent_ms=ANSWER_MS,
                signer=None if each is None else signer_of(each, proof=proof),
            )
            for each in GUESSES
            for proof in (False, True)
        ]
        loop = self.world.loop
        for port in (CONTROLLER_PORT, NAMESRV_PORT, BROKER_PORT, HA_PORT):
            await loop.create_server(lambda port=port: Raw(self._visited(port)), HOST, port)
        while True:
            await asyncio.sleep(self.dice.uniform(0.01, 0.1))
            if not self.stopping:
                action = self.dice.choice(
                    (self.forge, self.forge, self.replay, self.replay, self.push, self.replicate)
                )
                task = asyncio.create_task(action())
                self._tasks.add(task)
                task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            error = task.exception()
            if error is not None and not isinstance(error, OSError | TimeoutError):
                self.won.append(f"the attacker is broken: {error!r}")

    def _visited(self, port: int) -> "Callable[[Raw, bytes], None]":
        def on_data(raw: Raw, _data: bytes) -> None:
            if raw.peer != HOST:  # a replay of ours, to whoever is there
                self.won.append(f"{raw.peer} talks to the attacker's port {port}")

        return on_data

    # -- requests ----------------------------------------------------------------------------------------

    def _hostile(self) -> tuple[Operation[Any, Any], Wire, object]:
        """A request that would do harm."""
        dice, group = self.dice, self.world.group
        epoch = 0 if group is None else group.master_epoch
        set_epoch = 0 if group is None else group.sync_state_set_epoch
        master = 1 if group is None or group.master_broker_id is None else group.master_broker_id
        broker_id = dice.randint(1, 4)
        mine = f"{HOST}:{BROKER_PORT}"
        choices: tuple[tuple[Operation[Any, Any], Wire, object], ...] = (
            (
                ALTER_SYNC_STATE_SET,
                AlterSyncStateSetRequest(broker_name=GROUP, master_broker_id=master, master_epoch=epoch),
                SyncStateSet(sync_state_set=[master], sync_state_set_epoch=set_epoch),
            ),
            (
                ELECT_MASTER,
                ElectMasterRequest(
                    cluster_name=CLUSTER, broker_name=GROUP, broker_id=broker_id, designate_elect=True
                ),
                None,
            ),
            (
                REGISTER_BROKER_TO_CONTROLLER,
                RegisterBrokerToControllerRequest(
                    cluster_name=CLUSTER, broker_name=GROUP, broker_id=broker_id, broker_address=mine
                ),
                None,
            ),
            (GET_NEXT_BROKER_ID, BrokerSetRequest(cluster_name=CLUSTER, broker_name=GROUP), None),
            (
                APPLY_BROKER_ID,
                ApplyBrokerIdRequest(
                    cluster_name=CLUSTER,
                    broker_name=GROUP,
                    applied_broker_id=broker_id + 3,
                    register_check_code=f"{mine};1",
                ),
                None,
            ),
            (
                BROKER_HEARTBEAT,
                BrokerHeartbeatRequest(
                    cluster_name=CLUSTER,
                    broker_name=GROUP,
                    broker_addr=mine,
                    broker_id=broker_id,
                    epoch=epoch + 1,
                    max_offset=1 << 40,
                    confirm_offset=1 << 40,
                ),
                None,
            ),
            (
                CLEAN_BROKER_DATA,
                CleanBrokerDataRequest(
                    cluster_name=CLUSTER,
                    broker_name=GROUP,
                    broker_controller_ids_to_clean=str(broker_id),
                    is_clean_living_broker=True,
                ),
                None,
            ),
            (
                AUTH_CREATE_USER,
                UserRequest(username="mallory"),
                UserInfo(username="mallory", password="mallory", user_type="Super"),
            ),
            (AUTH_DELETE_USER, UserRequest(username=ADMIN.access_key), None),
        )
        return dice.choice(choices)

    def _false_push(self) -> RemotingCommand:
        """1008: the attacker's own host is master; or a hand-over."""
        group, dice = self.world.group, self.dice
        epoch = (0 if group is None else group.master_epoch) + dice.choice((0, 1, 1, 5))
        if dice.random() < 0.2:
            return request_command(
                HAND_OVER, HandOverRequest(broker_name=GROUP, master_epoch=epoch, broker_id=1), oneway=True
            )
        header = NotifyBrokerRoleChangedRequest(
            master_address=f"{HOST}:{BROKER_PORT}",
            master_epoch=epoch,
            sync_state_set_epoch=epoch,
            master_broker_id=9,
            broker_name=GROUP,
        )
        body = SyncStateSet(sync_state_set=[9], sync_state_set_epoch=epoch)
        command = request_command(NOTIFY_BROKER_ROLE_CHANGED, header, body, oneway=True)
        guess = dice.choice(GUESSES)
        if guess is not None:
            signer_of(guess, proof=dice.random() < 0.7)(command, "")
        return command

    async def forge(self) -> None:
        """To a controller or a broker; nobody may carry it out."""
        operation, header, body = self._hostile()
        client = self.dice.choice(self.clients)
        controllers = [f"{name}:{CONTROLLER_PORT}" for name in CONTROLLERS]
        address = self.dice.choice([*controllers, *controllers, *self.world.addresses()])
        outcome = await client.call(address, operation, header, body, timeout_ms=ANSWER_MS)
        self.counts["forged"] += 1
        if isinstance(outcome, Ok):
            self.won.append(f"{address} has carried out the attacker's {operation.code}")

    async def replay(self) -> None:
        """What was captured, as it was or altered, to its server, or to another one."""
        if not self.on_path.requests:
            return
        captured = self.dice.choice(self.on_path.requests)
        frame = captured.frame if self.dice.random() < 0.7 else altered(captured.command, self.dice)
        port = captured.to[1] if not captured.is_push else BROKER_PORT
        hosts = [
            self.world.hosts[name] for name in (CONTROLLERS if port != BROKER_PORT else self.world.disks)
        ]
        host = captured.to[0] if self.dice.random() < 0.5 else self.dice.choice(hosts)
        await self._send(frame, host, port)
        self.counts["replayed"] += 1

    async def push(self) -> None:
        """On a connection that a broker has opened, from the controller's end."""
        ends = [
            end
            for name in CONTROLLERS
            for end in self.world.network.ends.get(self.world.controllers[name].process, [])
            if end.get_extra_info("sockname")[1] == CONTROLLER_PORT
        ]
        if ends:
            self.counts["pushed"] += 1
            self.dice.choice(ends).put(encode(self._false_push()))

    async def _send(self, data: bytes, host: str, port: int) -> None:
        protocol = await self._open(host, port)
        protocol.transport.write(data)
        await asyncio.wait({protocol.closed}, timeout=self.dice.uniform(0.05, 1.0))
        protocol.transport.abort()

    async def _open(self, host: str, port: int) -> Raw:
        async with asyncio.timeout(0.5):
            _, protocol = await self.world.loop.create_connection(Raw, host, port)
        return protocol  # type: ignore[no-any-return]

    # -- HA links ----------------------------------------------------------------------------------------

    async def replicate(self) -> None:
        """Begins an HA link, and goes on if it is let."""
        dice, name = self.dice, self.dice.choice(sorted(self.world.disks))
        broker_id = dice.randint(1, 4)
        handshake = SlaveHandshake(broker_id, pulls_metadata=True).encode()
        kind = dice.choice(("plain", "guess", "replay"))
        guess = SlaveHello(
            Group(CLUSTER, GROUP, MEMBER.access_key, b"a guess"),
            broker_id,
            nonce=dice.randbytes(NONCE_BYTES),
            binding=b"",
            now_ms=0,
        )
        first, host = handshake, self.world.hosts[name]
        if kind == "guess":
            first = guess.start()
        elif kind == "replay" and self.on_path.hellos:
            first, (host, _) = dice.choice(self.on_path.hellos)
        protocol = await self._open(host, HA_PORT)
        protocol.transport.write(first)
        await asyncio.wait({protocol.closed}, timeout=0.2)
        proof = packet(PROOF, dice.randbytes(PROOF_BYTES))
        if not protocol.closed.done():
            protocol.transport.write(proof + handshake)
            await asyncio.wait({protocol.closed}, timeout=0.3)
        self.counts[f"replicated by {kind}"] += 1
        allowed = HEAD.size + BODY_BYTES[CHALLENGE][1] if kind == "replay" else 0
        if len(protocol.got) > allowed:
            self.won.append(f"the HA port of {name} has answered {len(protocol.got)} bytes to {kind}")
        protocol.transport.abort()

    # -- in the place of others --------------------------------------------------------------------------

    def take(self, name: str) -> None:
        """Answers at the address of a host that is down, until it is back."""
        if name in self._taken:
            return
        host = self.world.hosts[name]
        ports = (CONTROLLER_PORT, NAMESRV_PORT) if name in CONTROLLERS else (BROKER_PORT, HA_PORT)
        process = Process(self.world.loop, f"attacker as {name}", host)
        self._taken[name] = process

        async def serve() -> None:
            for port in ports if process.alive else ():
                on_data = self._as_master if port == HA_PORT else self._as_server
                await self.world.loop.create_server(lambda on_data=on_data: Raw(on_data), host, port)
            self.counts["took an address"] += 1
            await asyncio.Event().wait()

        process.run(serve)

    def leave(self, name: str) -> None:
        """The host is back."""
        process = self._taken.pop(name, None)
        if process is not None:
            process.alive = False
            self.world.network.died(process, power=False)
            if process.main is not None:
                process.main.cancel()

    def end(self) -> None:
        self.stopping = True
        for name in sorted(self._taken):
            self.leave(name)

    def _as_server(self, raw: Raw, _data: bytes) -> None:
        """Requests come; on the same connection it says who is master."""
        if raw.peer != HOST and len(raw.got) < 4_096 and self.dice.random() < 0.5:
            self.counts["pushed as a server"] += 1
            pushes = [each for each in self.on_path.requests if each.is_push]
            captured: Captured | None = self.dice.choice(pushes) if pushes else None
            if captured is not None and self.dice.random() < 0.5:
                raw.transport.put(captured.frame)
            else:
                raw.transport.put(encode(self._false_push()))

    def _as_master(self, raw: Raw, _data: bytes) -> None:
        """A slave dials; it must not go on after a proof that is wrong."""
        if len(raw.got) < HEAD.size or raw.peer == HOST:
            return
        magic, _, kind, size = HEAD.unpack_from(raw.got)
        more = len(raw.got) - HEAD.size - size
        if magic != MAGIC or kind != HELLO or more > 0:
            self.won.append(f"a slave goes on with a false master: {bytes(raw.got[:16])!r}")
        elif more == 0:
            self.counts["challenged a slave"] += 1
            raw.transport.put(packet(CHALLENGE, self.dice.randbytes(NONCE_BYTES + PROOF_BYTES)))

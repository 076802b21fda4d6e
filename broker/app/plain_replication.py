"""RocketMQ's master/slave mode without controllers: connects the replication of broker/plain_ha with the rest
of the broker.

The configuration fixes the role: there is no fail-over, and a slave never accepts a message. A slave
learns its master from the answers of the name servers to its registrations, or from haMasterAddress, and
copies messages from the HA port and metadata from the broker port.
"""

import asyncio
import logging
import random
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

from broker.admission.send_gate import ROLE
from broker.config.broker_config import BrokerConfig
from broker.controller_mode.replication_settings import ha_security, ha_settings
from broker.controller_mode.service import ReplicationParts
from broker.controller_mode.slave_sync import Leader, SlaveSync
from broker.core.readiness import RoleName
from broker.ha.security import HaSecurity
from broker.plain_ha.master_check import MasterCheck
from broker.plain_ha.report import runtime_info, status_of
from broker.plain_ha.service import PlainHaService
from broker.plain_ha.slave_client import Refusal
from broker.store.recovery import Between, nothing
from keelmq.remoting.address_text import split_address
from keelmq.remoting.operation import Audit, Call, Empty, Operation, OperationTable, Outcome, Reply, Wire
from keelmq.remoting.operations.broker import GET_BROKER_HA_STATUS
from keelmq.remoting.operations.route import RegisterBrokerResponse
from keelmq.runtime.backoff import Backoff
from keelmq.runtime.config import ConfigError, why_refused
from keelmq.runtime.tasks import TaskSet, wait_for_event

logger = logging.getLogger(__name__)

DISPATCH_RECORDS = 128
"""In one turn of the event loop, which other brokers may share."""
FORWARD_TIMEOUT_MS = 2_500
LINKED_PERIOD_MS = 2_000
"""How often a linked slave asks for the end of its master's log, for the lag."""
SEARCH = Backoff(first_ms=250, max_ms=5_000)
"""The pause between two registrations of a slave that is not linked: their answers name the master."""


class PlainReplication:
    """listen() binds the HA port of a master; serve() takes the role; start() begins to look for the
    master."""

    def __init__(self, config: BrokerConfig, parts: ReplicationParts) -> None:
        """Raises ConfigError for security settings that cannot work."""
        self._config, self._parts = config, parts
        self.is_slave = config.is_plain_slave
        self.slave_sync = SlaveSync(
            parts.client,
            parts.metadata,
            cluster=config.broker_cluster_name,
            broker_name=config.broker_name,
        )
        self.ha = PlainHaService(
            parts.store,
            is_slave=self.is_slave,
            host=config.bind_address,
            port=config.ha_port,
            settings=ha_settings(config),
            rules=config.copy_rules,
            commit=parts.commit,
            one_message_waits=lambda: len(parts.pending) == 1,
            on_replicated=parts.pending.release,
            on_in_sync_changed=self._in_sync_changed,
            security=_security(config, parts.audit),
        )
        self._check = MasterCheck(
            parts.client,
            parts.store,
            master=lambda: self._master,
            find_master=self.slave_sync.find_master,
            unverified_peer=self.slave_sync.unverified_peer,
        )
        self._master: str | None = None
        """Address of the master's broker port, as last reported by name servers; None: not yet, or not a
        slave."""
        self._named_ha = ""
        self._followed = ("", "")
        self._wake = asyncio.Event()

    # -- start and stop ----------------------------------------------------------------------------------

    async def listen(self) -> None:
        """Binds the HA port of a master. Raises ConfigError if it is not available."""
        try:
            await self.ha.start()
        except (OSError, UnicodeError) as error:
            config = self._config
            raise ConfigError(
                f"haListenPort: cannot listen on {config.bind_address}:{config.ha_port}: {why_refused(error)}"
            ) from error

    def recover(self, between: Between = nothing) -> None:
        """Prepares a store that was just loaded for its role; any thread. Quick."""
        if not self.is_slave:
            self._parts.store.become_master()

    async def serve(self) -> None:
        """Has the role when it returns. Called once, after recover()."""
        parts = self._parts
        if self.is_slave:
            parts.store.become_slave()
            self.ha.confirm_all()
            self._tell_gate()
            return
        self.ha.confirm_own()
        is_behind = True
        while is_behind:
            is_behind = parts.store.dispatcher.dispatch(DISPATCH_RECORDS)
            await asyncio.sleep(0)
        await parts.metadata.begin_alone()
        parts.messages_in.term_begins()
        self.ha.serve()
        parts.gate.open(ROLE)

    def start(self, tasks: TaskSet) -> None:
        """Starts the search for the master, and the copy of its metadata. A master needs neither."""
        if self.is_slave:
            tasks.start("the master's address", self._follow_forever)
            tasks.start("metadata of the master", self.slave_sync.run)

    def configure(self) -> None:
        """Applies changed settings."""
        self.ha.configure(ha_settings(self._config), self._config.copy_rules)
        self._in_sync_changed(self.ha.in_sync_count)

    async def stop(self) -> None:
        """Closes the links. Raises StopError if a step failed; the others were done."""
        await self.ha.stop()

    def bind(self, table: OperationTable) -> None:
        """Binds 907."""
        table.bind(GET_BROKER_HA_STATUS, self.get_broker_ha_status)

    async def get_broker_ha_status(self, request: Empty, call: Call) -> Reply:
        """Returns the state of each HA connection (907)."""
        return Reply(body=runtime_info(self.ha))

    # -- a master ----------------------------------------------------------------------------------------

    def appended(self) -> None:
        """Called at the end of a tick in which messages were stored."""
        self.ha.appended()

    def flushed(self, offset: int) -> None:
        """The log is on disk up to this offset."""
        self.ha.flushed()

    def _in_sync_changed(self, count: int) -> None:
        self._parts.gate.in_sync = count

    # -- a slave -----------------------------------------------------------------------------------------

    def registered(self, answer: RegisterBrokerResponse) -> None:
        """Handles the answer of a name server to a registration. While the slave is linked, a different
        answer changes nothing: that name server may not know of a restart yet."""
        if not self.is_slave or not answer.master_addr or self.ha.is_connected:
            return
        named = (answer.master_addr, answer.ha_server_addr or "")
        if named != (self._master, self._named_ha):
            self._master, self._named_ha = named
            self._wake.set()

    async def _follow_forever(self) -> None:
        failures = 0
        while True:
            ha_address = self._config.ha_master_address or self._named_ha
            if (ha_address, self._master or "") != self._followed:
                await self._follow(ha_address)
            if self.ha.is_connected:
                failures = 0
                await self._ask_master_end()
                await wait_for_event(self._wake, LINKED_PERIOD_MS)
            else:
                failures += 1
                self._parts.announce()
                await wait_for_event(self._wake, int(SEARCH.pause_ms(failures, random.random())))

    async def _follow(self, ha_address: str) -> None:
        await self.ha.unfollow()
        self._followed = (ha_address, self._master or "")
        broker_id = self._config.broker_id
        self.slave_sync.follow(None if self._master is None else Leader(self._master, 0, broker_id))
        self._tell_gate()
        try:
            address = split_address(ha_address)
        except ValueError:
            if ha_address or self._master:
                logger.warning("master %s has no HA address: %r", self._master, ha_address)
            return
        logger.info("slave %d of %s, HA address %s", broker_id, self._master or "?", ha_address)
        self.ha.follow(address, broker_id=broker_id, check_log=self._check.check)

    def _tell_gate(self) -> None:
        """All sends are refused permanently, with the master's address as the remark."""
        master = self._master or "a master that is not known yet"
        self._parts.gate.close(ROLE, f"this broker is slave of {master}")

    async def _ask_master_end(self) -> None:
        if self._master is None:
            return
        found = await self._check.bounds(self._master)
        if not isinstance(found, Refusal):
            self.ha.master_end(found[0].max_offset)

    def sends_to_master(self) -> bool:
        """Returns whether pulls are sent to the master: slaveReadEnable is not set, and the master is
        there."""
        return self.is_slave and not self._config.slave_read_enable and self.ha.is_connected

    async def forward_to_master(
        self, operation: Operation[Any, Any], header: Wire, body: Wire | None = None
    ) -> Outcome[Any] | None:
        """Sends a request to the master, once. None: this broker is the master, or it knows none."""
        if self._master is None:
            return None
        return await self._parts.client.call(
            self._master, operation, header, body, timeout_ms=FORWARD_TIMEOUT_MS
        )

    # -- state -------------------------------------------------------------------------------------------

    @property
    def role_name(self) -> RoleName:
        """The role of the configuration."""
        return "slave" if self.is_slave else "master"

    def runtime_info(self) -> Mapping[str, str]:
        """Returns the keys of the runtime information (28) that describe the role."""
        return {
            "brokerRole": self._config.broker_role,
            "haStatus": msgspec.json.encode(status_of(self.ha)).decode(),
        }


def _security(config: BrokerConfig, audit: Audit | None) -> HaSecurity:
    """Returns who may replicate. If clients must authenticate, a slave must, too, unless its address is in
    haPlainSlaves or haAuthenticationRequired=false: the HA port serves all messages."""
    found = ha_security(config, audit)
    checks_clients = config.authentication_enabled or config.acl_enable
    if checks_clients and config.ha_authentication_required is None and not found.required:
        if config.serves_plain_slaves:
            logger.warning(
                "clients must authenticate, but slaves have no credentials: only addresses in haPlainSlaves "
                "may replicate; set innerClientAuthenticationCredentials to let slaves authenticate"
            )
        return replace(found, required=True)
    return found

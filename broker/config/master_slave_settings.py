"""MasterSlaveSettings: roles and copies of RocketMQ's classic master/slave mode, without controllers."""

from typing import Literal

from pydantic import Field, field_validator

from broker.plain_ha.core.copies import CopyRules
from keelmq.remoting.address_text import split_address
from keelmq.runtime.config import Config


class MasterSlaveSettings(Config):
    """Base of BrokerConfig."""

    broker_role: Literal["ASYNC_MASTER", "SYNC_MASTER", "SLAVE"] = Field(
        "ASYNC_MASTER",
        description="ignored in controller mode. A master whose file has this key opens haListenPort for "
        "its slaves. SYNC_MASTER: a message waits for inSyncReplicas copies. SLAVE: copies from the master "
        "of the same brokerName, and never becomes master",
    )
    ha_master_address: str = Field(
        "",
        description="HA address of a slave's master, host:port; empty: name servers say it. Not in "
        "controller mode",
    )
    total_replicas: int = Field(
        1, ge=1, description="brokers of the group, at least inSyncReplicas; not used in controller mode"
    )
    in_sync_replicas: int = Field(
        1,
        ge=1,
        description="copies before a message is acknowledged, the master's included; without controllers "
        "only with SYNC_MASTER",
    )
    min_in_sync_replicas: int = Field(
        1,
        ge=1,
        description="copies in sync below which messages are refused: members of the SyncStateSet, or "
        "without controllers the master and its connected slaves in sync",
    )
    enable_auto_in_sync_replicas: bool = Field(
        False,
        description="a SYNC_MASTER waits for no more copies than are in sync, but for minInSyncReplicas; not "
        "in controller mode",
    )
    ha_max_gap_not_in_sync: int = Field(
        268_435_456,
        gt=0,
        description="bytes that a slave lacks when it is no more in sync; not used in controller mode",
    )

    @field_validator("ha_master_address")
    @classmethod
    def _one_address(cls, address: str) -> str:
        try:
            if address:
                split_address(address)
        except ValueError as error:
            raise ValueError(f"haMasterAddress: {error}") from None
        return address

    def check_controlled(self) -> None:
        """Raises ValueError for settings that controller mode cannot honour."""
        if self.ha_master_address:
            raise ValueError(
                "haMasterAddress: in controller mode a slave asks the controllers for its master"
            )
        if self.enable_auto_in_sync_replicas:
            raise ValueError(
                "enableAutoInSyncReplicas: in controller mode minInSyncReplicas and the SyncStateSet decide"
            )

    def check_plain(self, broker_id: int, *, knows_name_servers: bool) -> None:
        """Raises ValueError for settings that do not fit without controllers."""
        is_slave = self.broker_role == "SLAVE"
        if is_slave and broker_id < 1:
            raise ValueError(
                f"brokerRole=SLAVE needs a brokerId above 0, not {broker_id}: 0 is the master's "
                "(enableControllerMode=true gives ids and roles)"
            )
        if not is_slave and broker_id != 0:
            raise ValueError(
                f"brokerId {broker_id} is a slave's: a master has 0 without enableControllerMode, a slave "
                "brokerRole=SLAVE"
            )
        if is_slave and not self.ha_master_address and not knows_name_servers:
            raise ValueError("brokerRole=SLAVE: namesrvAddr or haMasterAddress must lead to the master")
        if not self.total_replicas >= self.in_sync_replicas >= self.min_in_sync_replicas:
            raise ValueError(
                f"totalReplicas {self.total_replicas} >= inSyncReplicas {self.in_sync_replicas} >= "
                f"minInSyncReplicas {self.min_in_sync_replicas} is not true"
            )

    @property
    def copy_rules(self) -> CopyRules:
        """How many copies a message needs without controllers."""
        return CopyRules(
            waits=self.broker_role == "SYNC_MASTER" and self.in_sync_replicas > 1,
            in_sync_replicas=self.in_sync_replicas,
            min_in_sync_replicas=self.min_in_sync_replicas,
            auto=self.enable_auto_in_sync_replicas,
            max_gap_bytes=self.ha_max_gap_not_in_sync,
        )

    def plain_warnings(self) -> list[str]:
        """Returns texts about settings that are legal without controllers, and probably a mistake."""
        found = []
        if self.broker_role == "SYNC_MASTER" and self.in_sync_replicas == 1:
            found.append(
                "brokerRole=SYNC_MASTER with inSyncReplicas=1 waits for no slave, as in RocketMQ 5: set "
                "inSyncReplicas and totalReplicas to 2 or more"
            )
        if self.broker_role == "ASYNC_MASTER" and self.in_sync_replicas > 1:
            found.append(
                f"inSyncReplicas={self.in_sync_replicas} has no effect: an ASYNC_MASTER waits for no slave "
                "(brokerRole=SYNC_MASTER does)"
            )
        if self.broker_role != "SLAVE" and self.ha_master_address:
            found.append("haMasterAddress has no effect: this broker is a master")
        return found

"""What must be true of every run, seen from outside. Each checker is itself tested on bad histories."""

from dataclasses import dataclass, field

from namesrv.plugins.controller.core.events import decode_event
from namesrv.plugins.controller.machine import ControllerMachine


class Violation(AssertionError):
    """A promise was broken; the text says which, by whom and when."""


@dataclass
class Checker:
    """Collects what masters did and what producers heard."""

    masters: dict[int, str] = field(default_factory=dict)  # masterEpoch -> broker
    acked: dict[bytes, tuple[int, int]] = field(
        default_factory=dict
    )  # record -> (offset, epoch that acked it)

    def became_master(self, broker: str, epoch: int, log: bytes, record_bytes: int) -> None:
        """One master per masterEpoch, and it has every record acknowledged in earlier epochs."""
        owner = self.masters.setdefault(epoch, broker)
        if owner != broker:
            raise Violation(f"masterEpoch {epoch} has two masters: {owner} and {broker}")
        self._has_all(f"{broker}, master of epoch {epoch},", log, record_bytes, before_epoch=epoch)

    def acknowledged(self, record: bytes, offset: int, epoch: int) -> None:
        self.acked[record] = (offset, epoch)

    def final_log(self, broker: str, log: bytes, record_bytes: int) -> None:
        """Nothing that a producer was told is missing, whoever told it and however late."""
        self._has_all(broker, log, record_bytes, before_epoch=None)

    def _has_all(self, who: str, log: bytes, record_bytes: int, before_epoch: int | None) -> None:
        for record, (offset, epoch) in self.acked.items():
            if before_epoch is not None and epoch >= before_epoch:
                continue
            if log[offset : offset + record_bytes] != record:
                raise Violation(
                    f"{who} lacks record {record.hex()} at {offset}, acknowledged in epoch {epoch}"
                )


def check_identities(owners: dict[int, str], brokers: dict[str, tuple[int | None, str]]) -> None:
    """owners: the controllers' id -> registerCheckCode; brokers: name -> (id on disk, its check code)."""
    seen: dict[int, str] = {}
    for name, (broker_id, check_code) in sorted(brokers.items()):
        if broker_id is None:
            continue
        if broker_id in seen:
            raise Violation(f"brokerId {broker_id} is on the disks of {seen[broker_id]} and {name}")
        seen[broker_id] = name
        if owners.get(broker_id) != check_code:
            raise Violation(f"brokerId {broker_id} of {name} belongs to {owners.get(broker_id)!r}")
    if len(seen) != len(owners):
        raise Violation(f"ids without a broker: {sorted(set(owners) - set(seen))}")


def check_log(entries: list[bytes]) -> None:
    """Replays the controllers' log: epochs never go back, an id has one owner for life, sets are registered;
    cleaning changes none of it."""
    machine, owners = ControllerMachine(), dict[tuple[str, int], str]()
    for entry in entries:
        before = machine.state
        machine.apply(entry)
        for name, group in before.brokers.items():
            after = machine.state.brokers.get(name) or machine.state.new_set(
                "", name
            )  # cleaned: from here on
            if (
                after.master_epoch < group.master_epoch
                or after.sync_state_set_epoch < group.sync_state_set_epoch
            ):
                raise Violation(f"epochs of {name} went back at {decode_event(entry)}")
            for each, replica in after.replicas.items():
                if owners.setdefault((name, each), replica.check_code) != replica.check_code:
                    raise Violation(f"an id of {name} changed its owner at {decode_event(entry)}")
            if not after.sync_state_set <= after.replicas.keys():
                raise Violation(f"SyncStateSet of {name} has unknown brokers at {decode_event(entry)}")

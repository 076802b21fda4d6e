/** What an operator does with a group at its controllers. */

import { useState } from "preact/hooks";
import { session } from "../api/client";
import type { GroupStatus } from "../api/types";
import { ActionDialog } from "../components/action";
import { Select } from "../components/basic";
import { stateOf } from "../lib/cluster";
import { useStore } from "../lib/store";

/** The first choice: a living replica in the SyncStateSet that is not the master. */
export function firstChoice(group: GroupStatus): number | null {
  const candidates = group.replicas.filter((each) => each.brokerId !== group.masterId);
  const good = candidates.find((each) => stateOf(each, group) === "in sync");
  return (good ?? candidates[0] ?? group.replicas[0])?.brokerId ?? null;
}

export function ElectButton({ group }: { group: GroupStatus }) {
  const [brokerId, setBrokerId] = useState<number | null>(null);
  const { readOnly } = useStore(session);
  const first = firstChoice(group);
  return (
    <>
      <button type="button" class="primary" disabled={first === null || readOnly} onClick={() => setBrokerId(first)}>
        Elect a master …
      </button>
      {brokerId !== null && (
        <ActionDialog
          title={`Elect a master of ${group.brokerName}`}
          verb="Elect"
          action={{ name: "electMaster", parameters: { cluster: group.cluster, brokerName: group.brokerName, brokerId } }}
          onClose={() => setBrokerId(null)}
          fields={
            <Select
              label="The new master"
              value={String(brokerId)}
              options={group.replicas.map((each) => [String(each.brokerId), `${each.brokerId} · ${stateOf(each, group)} · ${each.address}`] as const)}
              onValue={(value) => setBrokerId(Number(value))}
            />
          }
        />
      )}
    </>
  );
}

/** Replicas that will not return. Shown only if one is not alive. */
export function ForgetButton({ group }: { group: GroupStatus }) {
  const [isOpen, setOpen] = useState(false);
  const { readOnly } = useStore(session);
  const dead = group.replicas.filter((each) => !each.isAlive).map((each) => each.brokerId);
  if (!dead.length && !isOpen) return null;
  return (
    <>
      <button type="button" disabled={readOnly} onClick={() => setOpen(true)}>Forget dead replicas …</button>
      {isOpen && (
        <ActionDialog
          title={`Forget replicas of ${group.brokerName}`}
          verb="Forget"
          action={{ name: "cleanBrokerMetadata", parameters: { cluster: group.cluster, brokerName: group.brokerName, brokerIds: dead } }}
          onClose={() => setOpen(false)}
        />
      )}
    </>
  );
}

/** The replicas of a group as a row of boxes: the shape and the word say the state. */

import type { GroupStatus, ReplicaStatus } from "../api/types";
import { belowMinimum, inSync, stateOf, type ReplicaState } from "../lib/cluster";
import { bytes, duration } from "../lib/format";

const SHAPES: Readonly<Record<ReplicaState, string>> = { master: "★", "in sync": "●", behind: "○", dead: "✕" };

export function ReplicaStrip({ group }: { group: GroupStatus }) {
  return (
    <ul class="replicas">
      {group.replicas.map((each) => {
        const state = stateOf(each, group);
        return (
          <li key={each.brokerId} class={`replica ${state.replace(" ", "-")}`} title={each.address}>
            <span class="shape" aria-hidden="true">{SHAPES[state]}</span>
            <b>{each.brokerId}</b>
            <span>{state}</span>
            <small>{lagText(each, state)}</small>
          </li>
        );
      })}
    </ul>
  );
}

export function lagText(replica: ReplicaStatus, state: ReplicaState): string {
  if (state === "dead") return replica.isAlive ? "silent" : "not alive";
  if (state === "master") return "";
  if (replica.lagBytes === null) return "lag –";
  if (replica.lagBytes === 0) return "no lag";
  return replica.lagMs === null ? bytes(replica.lagBytes) : `${bytes(replica.lagBytes)}, ${duration(replica.lagMs)}`;
}

export function StateMark({ state }: { state: ReplicaState }) {
  return (
    <span class={`state ${state.replace(" ", "-")}`}>
      <span class="shape" aria-hidden="true">{SHAPES[state]}</span> {state}
    </span>
  );
}

/** "2 of 3 in sync", marked if that is too few. */
export function InSync({ group }: { group: GroupStatus }) {
  const count = inSync(group);
  const min = group.minInSync === null ? "" : `, minimum ${group.minInSync}`;
  return (
    <span class={belowMinimum(group) ? "bad-text" : undefined} title={`SyncStateSet: ${group.syncStateSet.join(", ") || "not known"}`}>
      {belowMinimum(group) ? "✕ " : ""}
      {count} of {group.replicas.length}
      <span class="dim min">{min}</span>
    </span>
  );
}

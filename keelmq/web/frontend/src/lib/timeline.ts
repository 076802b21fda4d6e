/** What happened to a group, the newest first. Pure. */

import type { HistoryView, PastElection } from "../api/types";
import { duration } from "./format";
import { steps } from "./history";

export interface GroupEvent {
  timeMs: number;
  kind: "election" | "SyncStateSet" | "replicas";
  tone: "ok" | "warning" | "failed" | "info";
  text: string;
}

export function timeline(elections: readonly PastElection[], history: HistoryView | null): GroupEvent[] {
  const seen = (name: string, kind: "SyncStateSet" | "replicas", words: string): GroupEvent[] =>
    steps(history?.timesMs ?? [], history?.values[name] ?? []).map(({ timeMs, before, after }) => ({
      timeMs,
      kind,
      tone: after < before ? "warning" : "ok",
      text: `${after < before ? "shrank" : "grew"} from ${before} to ${after} ${words}`,
    }));
  const events = [...elections.map(ofElection), ...seen("inSync", "SyncStateSet", "in sync"), ...seen("replicasAlive", "replicas", "alive")];
  return events.sort((one, other) => other.timeMs - one.timeMs);
}

function ofElection(election: PastElection): GroupEvent {
  const { ts: timeMs, oldMasterBrokerId: old, newMasterBrokerId: now, reason } = election;
  if (now == null) return { timeMs, kind: "election", tone: "failed", text: `nobody could be elected: ${reason}` };
  const lostFor = election.lastHeartbeatTs == null ? "" : `, ${duration(Math.max(timeMs - election.lastHeartbeatTs, 0))} after the last heartbeat`;
  const change = old == null ? `broker ${now}` : `broker ${now} instead of ${old}`;
  return { timeMs, kind: "election", tone: election.unclean ? "warning" : "info", text: `${change}${election.unclean ? " (unclean)" : ""}: ${reason}${lostFor}` };
}

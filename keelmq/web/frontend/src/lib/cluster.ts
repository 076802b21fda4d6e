/** What a picture says, in words and numbers. Pure. */

import type { ClusterStatus, GroupStatus, Problem, ReplicaStatus, Verdict } from "../api/types";
import { link } from "../router";
import { count, plural } from "./format";

const RANKS: Readonly<Record<Verdict, number>> = { failed: 0, warning: 1, ok: 2 };

/** The worst is 0. */
export function rank(verdict: Verdict): number {
  return RANKS[verdict];
}

export function groupLink(group: { cluster: string; brokerName: string }, tab?: string): string {
  const href = link("/groups", group.cluster, group.brokerName);
  return tab ? `${href}?tab=${tab}` : href;
}

export function replicaOf(group: GroupStatus, brokerId: number | null): ReplicaStatus | undefined {
  return group.replicas.find((each) => each.brokerId === brokerId);
}

/** Of the slaves that are alive; null: not known of any. */
export function worstLag(group: GroupStatus, of: "lagBytes" | "lagMs"): number | null {
  const known = group.replicas
    .filter((each) => each.isAlive && each.brokerId !== group.masterId)
    .map((each) => each[of])
    .filter((value) => value !== null);
  return known.length ? Math.max(...known) : null;
}

export function messagesIn(group: GroupStatus): number | null {
  return replicaOf(group, group.masterId)?.messagesInPerS ?? null;
}

/** Null: not known of any. */
export function total(values: readonly (number | null | undefined)[]): number | null {
  const known = values.filter((value) => value != null);
  return known.length ? known.reduce((sum, value) => sum + value, 0) : null;
}

export function messagesOut(group: GroupStatus): number | null {
  return total(group.replicas.map((each) => each.messagesOutPerS));
}

/** How many replicas have every acknowledged message, as far as is known. */
export function inSync(group: GroupStatus): number {
  return group.syncStateSet.length || group.replicas.filter((each) => each.isInSync).length;
}

export function belowMinimum(group: GroupStatus): boolean {
  return group.minInSync !== null && inSync(group) < group.minInSync;
}

export type ReplicaState = "master" | "in sync" | "behind" | "dead";

export function stateOf(replica: ReplicaStatus, group: GroupStatus): ReplicaState {
  if (!replica.isAlive || replica.role === "silent") return "dead";
  if (replica.brokerId === group.masterId) return "master";
  return replica.isInSync ? "in sync" : "behind";
}

/** The verdict in a sentence: first what is lost, then what may be lost next. */
export function headline(status: ClusterStatus): string {
  const groups = status.groups.length;
  if (!groups && status.verdict === "ok") return "No broker is registered yet.";
  const parts: string[] = [];
  const without = status.groups.filter((group) => group.masterId === null).length;
  if (without) parts.push(`${plural(without, "group")} of ${count(groups)} without a master`);
  const short = status.groups.filter((group) => group.masterId !== null && belowMinimum(group)).length;
  if (short) parts.push(`${plural(short, "group")} below minInSyncReplicas, which ${short === 1 ? "refuses" : "refuse"} messages`);
  const silent = status.groups.flatMap((group) => group.replicas).filter((each) => !each.isAlive).length;
  if (silent) parts.push(`${plural(silent, "broker")} not alive`);
  const controllers = status.controllers.filter((each) => each.role === "silent").length;
  if (controllers) parts.push(`${controllers} of ${plural(status.controllers.length, "controller")} silent`);
  else if (status.controllers.length && !status.controllers.some((each) => each.role === "leader")) parts.push("no controller leads");
  const nameServers = status.nameServers.filter((each) => !each.isUp).length;
  if (nameServers) parts.push(`${nameServers} of ${plural(status.nameServers.length, "name server")} silent`);
  if (parts.length) return `${parts.join("; ")}.`;
  if (status.problems.length) return `Every group has a master; ${plural(status.problems.length, "problem")} to look at.`;
  return groups === 1 ? "The group has a master, and enough replicas in sync." : `All ${count(groups)} groups have a master, and enough replicas in sync.`;
}

/** The group that a problem is about: its subject is a broker name, an address of a replica, or lists several. */
export function groupOf(problem: Problem, groups: readonly GroupStatus[]): GroupStatus | undefined {
  return groups.find(
    (group) =>
      problem.subject === group.brokerName ||
      problem.subject === `${group.cluster}/${group.brokerName}` ||
      group.replicas.some((replica) => replica.address === problem.subject),
  );
}

/** Where the epochs of replicas differ: the values of a row are not all the same. Unknown ones are left out. */
export function differs(values: readonly (string | number | null | undefined)[]): boolean {
  return new Set(values.filter((value) => value != null)).size > 1;
}

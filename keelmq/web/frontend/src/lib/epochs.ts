/** Epoch files side by side. Pure. */

import type { EpochEntry, ReplicaDetail } from "../api/types";

export interface EpochRow {
  epoch: number;
  /** As the replicas; null: it has no such epoch, undefined: it did not answer. */
  entries: (EpochEntry | null | undefined)[];
  /** Replicas that begin the epoch elsewhere, or have ended it elsewhere, or lack it. */
  differs: boolean[];
}

/** Newest first. The last entry of a replica is still written, so its end is no difference. A replica that has
 * deleted old parts of its log lacks the first epochs, which is no difference either. */
export function epochRows(replicas: readonly ReplicaDetail[], masterId: number | null): EpochRow[] {
  const known = replicas.filter((each) => each.epochs !== null);
  const model = known.find((each) => each.brokerId === masterId) ?? known[0];
  const all = new Set(known.flatMap((each) => each.epochs?.map((entry) => entry.epoch) ?? []));
  return [...all].sort((one, other) => other - one).map((epoch) => {
    const right = entryOf(model, epoch);
    const entries = replicas.map((each) => (each.epochs === null ? undefined : (entryOf(each, epoch) ?? null)));
    return { epoch, entries, differs: replicas.map((each, at) => isOther(each, entries[at], right, model, epoch)) };
  });
}

function entryOf(replica: ReplicaDetail | undefined, epoch: number): EpochEntry | undefined {
  return replica?.epochs?.find((each) => each.epoch === epoch);
}

function isOther(
  replica: ReplicaDetail,
  entry: EpochEntry | null | undefined,
  right: EpochEntry | undefined,
  model: ReplicaDetail | undefined,
  epoch: number,
): boolean {
  if (entry === undefined || replica === model) return false;
  if (entry === null) return right !== undefined && epoch > (replica.epochs?.[0]?.epoch ?? -1);
  if (right === undefined) return epoch > (model?.epochs?.[0]?.epoch ?? -1);
  const isLast = replica.epochs?.at(-1) === entry || model?.epochs?.at(-1) === right;
  return entry.startOffset !== right.startOffset || (!isLast && entry.endOffset !== right.endOffset);
}

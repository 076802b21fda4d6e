/* What a replica was over time: master, in sync, or out of the SyncStateSet and then catching up, disconnected or
 * down; removed when the group went on without it. The controllers' spans say who was out, its lag says why. */

export const replica = (id) => `replica ${id}`;

export const STATES = {
  master: "master", in_sync: "in sync", catching_up: "catching up", disconnected: "disconnected", down: "down",
  out: "out of sync", removed: "removed",
};

/** Why a replica was out in window i: its acknowledgement moved, or stood still, or no master saw it at all. */
function whyOut({ samples, last_ack_offset: acked, bytes_max }, i) {
  if (samples[i] === null || samples[i] === undefined) return "out"; // no sample of a master: nobody knows
  if (samples[i] === 0) return "down";
  const known = (at) => acked[at] !== null && acked[at] !== undefined;
  if (bytes_max[i] === 0) return "catching_up";
  if (!known(i)) return "out";
  if (known(i - 1)) return acked[i] > acked[i - 1] ? "catching_up" : "disconnected";
  return known(i + 1) && acked[i + 1] === acked[i] ? "disconnected" : "catching_up";
}

/** A span that was out, in pieces of one reason each. */
function outPieces(span, lag, { from, window }) {
  if (!lag) return [span];
  const pieces = [];
  let at = span.from;
  while (at < span.to) {
    const i = Math.floor((at - from) / window);
    const end = Math.min(span.to, i < 0 ? from : i < lag.ts.length ? from + (i + 1) * window : span.to);
    const state = i < 0 || i >= lag.ts.length ? "out" : whyOut(lag, i);
    if (pieces.length && pieces.at(-1).state === state) pieces.at(-1).to = end;
    else pieces.push({ from: at, to: end, state });
    at = end;
  }
  return pieces;
}

/** Spans that touch or overlap, as one. */
function union(spans) {
  const found = [];
  for (const { from, to } of [...spans].sort((a, b) => a.from - b.from)) {
    if (found.length && from <= found.at(-1).to) found.at(-1).to = Math.max(found.at(-1).to, to);
    else found.push({ from, to });
  }
  return found;
}

/** The time in which the group is known and goes on without this replica, after it was a member. */
function removedPieces(spans, known) {
  const own = union(spans);
  if (!own.length) return [];
  return known.flatMap(({ from, to }) => {
    const pieces = [];
    let at = Math.max(from, own[0].from);
    for (const each of [...own, { from: Infinity, to: Infinity }]) {
      if (each.to <= at) continue;
      const end = Math.min(each.from, to);
      if (end > at) pieces.push({ from: at, to: end, state: "removed" });
      at = Math.max(at, each.to);
    }
    return pieces;
  });
}

/** Members with spans of STATES. `replicaLag`, `range`: of groupModel. */
export function memberStates(members, replicaLag, range) {
  const known = union(members.flatMap(({ spans }) => spans));
  return members.map(({ broker_id, spans }) => {
    const lag = replicaLag.find((each) => each.broker_id === broker_id);
    const pieces = spans.flatMap((span) => (span.state === "out" ? outPieces(span, lag, range) : [span]));
    return { broker_id, spans: [...pieces, ...removedPieces(spans, known)].sort((a, b) => a.from - b.from) };
  });
}

/** Whether a replica was master or removed in all of a window: then the lag of its last acknowledgement says nothing. */
export function isNotReplica(states, broker_id, from, to) {
  const member = states.find((each) => each.broker_id === broker_id);
  if (!member) return states.length > 0; // the controllers never had it
  const mine = member.spans.filter((span) => span.from < to && from < span.to);
  return mine.some(({ state }) => state === "master")
    || (mine.length > 0 && mine.every(({ state }) => state === "removed"));
}

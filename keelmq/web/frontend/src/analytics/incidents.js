/* What the rules found, in words and levels, and the levels of lag. */

import { count, plural } from "../lib/format";
import { groupKey, hashOf } from "./model";
import { DEMO, tableSection, timeColumn } from "./sections";
import { replica } from "./states";
import { bytes, column, duration, el, numberColumn } from "./tables";

const LAG_STEPS = [100, 300, 1_000, 5_000, 30_000];
const SHARE_STEPS = [0.0001, 0.01, 0.1, 0.5, 0.9];
const lagNames = LAG_STEPS.map((ms) => `< ${duration(ms)}`).concat(`${duration(LAG_STEPS.at(-1))} and more`);
const shareNames = ["none", "< 1 %", "< 10 %", "< 50 %", "< 90 %", "90 % and more"];
export const METRICS = {
  incidents: {
    title: "incidents", steps: [1, 2, 3, 4, 5], text: (level) => (level ? "incident" : "no incident"),
    names: ["none", "clock skew", "fail-over", "flapping, replica down, no data", "lag, stale master", "below minimum, unclean election"],
  },
  ms_p99: { title: "p99 lag", steps: LAG_STEPS, names: lagNames, text: duration },
  ms_max: { title: "highest lag", steps: LAG_STEPS, names: lagNames, text: duration },
  below_min_ms: { title: "time below minInSyncReplicas", steps: SHARE_STEPS, names: shareNames, text: duration, share: true },
  unknown_ms: { title: "time without data", steps: SHARE_STEPS, names: shareNames, text: duration, share: true },
};
export const KINDS = {
  unclean: "unclean election", "below-min": "below minimum", lag: "lag", "stale-master": "stale master",
  flap: "flapping", "dead-replica": "replica down", gap: "no data", failover: "fail-over", skew: "clock skew",
};
export const SERIOUS = new Set(["unclean", "below-min", "lag", "stale-master"]);
export const LEVELS = { skew: 1, failover: 2, flap: 3, "dead-replica": 3, gap: 3, lag: 4, "stale-master": 4, "below-min": 5, unclean: 5 };
export const GLYPHS = { skew: "C", failover: "F", flap: "~", "dead-replica": "R", gap: "?", lag: "L", "stale-master": "S", "below-min": "B", unclean: "U" };
const MEASURES = {
  unclean: plainCount, lag: duration, "below-min": duration, "stale-master": (n) => plural(n, "sample"),
  flap: (n) => plural(n, "flap"), "dead-replica": bytes, gap: () => "", failover: duration, skew: duration,
};

function plainCount(n) {
  return plural(n, "election");
}

/** 0 to 5, or null for unknown. */
export function levelOf(metric, value, step_ms) {
  if (value === null || value === undefined) return null;
  const { steps, share } = METRICS[metric];
  const measured = share ? value / step_ms : value;
  const level = steps.findIndex((each) => measured < each);
  return level < 0 ? steps.length : level;
}

export const kindName = (kind) => KINDS[kind] || kind;

export function incidentTable(incidents, total, name = "incidents") {
  const link = (row, text) => el("a", { href: incidentHash(row) }, text);
  const cut = total > incidents.length ? ` The worst ${count(incidents.length)} of ${count(total)}.` : "";
  return tableSection({
    name, title: "Incidents", lead: `What rules found in this data, the most serious first.${cut}`, rows: incidents,
    columns: [
      column("kind", "What", (row) => row.kind, {
        node: (row) => el("span", { class: `chip ${SERIOUS.has(row.kind) ? "failed" : "shrink"}` }, kindName(row.kind)),
      }),
      column("group", "Group", groupKey, { node: link }),
      column("replica", "Replica", (row) => row.replica, { text: replica }),
      timeColumn("from", "From", (row) => row.from),
      numberColumn("ms", "From first to last", (row) => row.to - row.from, duration),
      numberColumn("state_ms", "In this state", (row) => row.state_ms ?? null, duration),
      numberColumn("worst", "Worst", (row) => row.worst, count),
      column("measure", "In words", (row) => (MEASURES[row.kind] || count)(row.worst)),
    ],
    empty: ["No rule found anything: no lag, no missing data, no group below minInSyncReplicas. To see some:", DEMO],
  });
}

function incidentHash(row) {
  const around = Math.max(600_000, row.to - row.from);
  const group = { cluster_name: row.cluster_name, broker_name: row.broker_name };
  const ofReplica = row.replica === null ? null : String(row.replica);
  return hashOf(group, { from: String(row.from - around), to: String(row.to + around), replica: ofReplica });
}

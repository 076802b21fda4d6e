/* What a page knows: the index of the fleet and one group, from the server or, in a report, from the page
 * itself; and its address, which has the group, the time and the search, so that it can be sent to somebody.
 * `null` is unknown and is never drawn as 0. snake_case means a key of the page files, everywhere. */

import { memberStates } from "./states";
import { ago, clock, day, duration } from "./tables";

export const POLL_MS = 10_000;
const FETCH_MS = 8_000;
const STALE_INTERVALS = 3;
const PAGES_VERSION = 1;

export const page = { index: null, group: null, embedded: null, etags: {}, problem: "", open: new Set() };

/* ---- the address ---- */

export const state = () => Object.fromEntries(new URLSearchParams(location.hash.slice(1)));

/** A hash with these keys changed; null removes one. */
export function hashWith(changes, base = state()) {
  const kept = Object.entries({ ...base, ...changes }).filter(([, value]) => value !== null && value !== "");
  return `#${new URLSearchParams(kept)}`;
}

export function goTo(changes) {
  location.hash = hashWith(changes);
}

export const groupKey = (group) => `${group.cluster_name}/${group.broker_name}`;
export const hashOf = (group, more = {}) => {
  const { metric, q } = state();
  return hashWith({ group: groupKey(group), ...more }, { ...(q && { q }), ...(metric && { metric }) });
};
export const fleetHash = () => hashWith({ group: null, from: null, to: null, replica: null });
export const wholeNumber = (text) => (/^\d{1,15}$/.test(text || "") ? Number(text) : null);

/** The group that the address names; of a fleet of one group, that one. */
export function chosen() {
  const { groups } = page.index;
  const wanted = state().group;
  return groups.find((each) => groupKey(each) === wanted) || (groups.length === 1 ? groups[0] : null);
}

/* ---- fetching ---- */

/** The JSON at an address, or null if it is what was fetched before. Throws what to tell the user. */
async function fetched(path) {
  const headers = page.etags[path] ? { "If-None-Match": page.etags[path] } : {};
  const options = { headers, cache: "no-store", signal: AbortSignal.timeout(FETCH_MS) };
  const reply = await fetch(path, options).catch(() => {
    throw new Error("The server does not answer");
  });
  if (reply.status === 304) return null;
  const body = await reply.json().catch(() => ({}));
  if (!reply.ok) throw new Error(String(body.detail || `the server answered ${reply.status}`));
  page.etags = { [path]: reply.headers.get("ETag"), ...(path === FLEET ? {} : { [FLEET]: page.etags[FLEET] }) };
  return checked(body);
}

export const FLEET = "./v1/analytics/fleet";

export function checked(body) {
  if (body.v === PAGES_VERSION) return body;
  throw new Error(`the data has version ${body.v}, this page draws version ${PAGES_VERSION}: compute it again`);
}

function groupPath(group) {
  const { from, to } = state();
  const range = [["from", wholeNumber(from)], ["to", wholeNumber(to)]].filter(([, ts]) => ts !== null);
  const query = range.length ? `?${new URLSearchParams(range)}` : "";
  const names = [group.cluster_name, group.broker_name].map(encodeURIComponent).join("/");
  return `./v1/analytics/groups/${names}${query}`;
}

/** Fetches what the address shows; returns whether anything is new. */
export async function refresh() {
  if (page.embedded) {
    const group = chosen();
    page.group = group && groupModel(page.embedded.groups[groupKey(group)]);
    return true;
  }
  const index = await fetched(FLEET);
  if (index) page.index = index;
  const group = chosen();
  if (!group) {
    page.group = null;
    return Boolean(index);
  }
  const path = groupPath(group);
  const answer = await fetched(path);
  if (answer) page.group = groupModel(answer);
  return Boolean(index || answer);
}

/* ---- the data as the charts want it ---- */

/** A group with its series as parallel lists: ts, and one list for each column; unknown is null. */
function groupModel({ group, series, finest_ms }) {
  const { start_ts, step_ms, count } = series;
  const ts = Array.from({ length: count }, (_, i) => start_ts + i * step_ms);
  const nothing = ts.map(() => null);
  const lag = new Proxy({ ...series.lag, ts }, { get: (columns, name) => columns[name] || nothing });
  const known = ts.map((_, i) => (lag.samples[i] ?? 0) > 0);
  const range = { from: start_ts, to: start_ts + count * step_ms, window: step_ms };
  const replicaLag = series.replicas.map(({ broker_id, columns }) => ({
    broker_id, ts, bytes_max: columns.bytes_max || nothing, ms_max: columns.ms_max || nothing,
    samples: columns.samples || nothing, last_ack_offset: columns.last_ack_offset || nothing,
  }));
  return {
    ...group, lag, finest_ms, range, replicaLag,
    states: memberStates(group.members, replicaLag, range),
    hasSamples: known.some(Boolean),
    totals: { elections: 0, unclean_elections: 0, shrinks: 0, expands: 0, flaps: 0, below_min_ms: 0, ...group.totals },
    consumers: (series.consumers || []).map(({ consumer_group, topic, columns }) => ({
      name: `${consumer_group}, ${topic}`, ts,
      lag_messages_max: columns.lag_messages_max || nothing, lag_ms_max: columns.lag_ms_max || nothing,
    })),
    unknown: spansOf(known.map((each) => !each), start_ts, step_ms),
    below: spansOf((series.state.below_min_ms || []).map((ms) => ms > 0), start_ts, step_ms),
  };
}

/** Windows that follow each other and are true, as [from, to]. */
function spansOf(flags, start_ts, step_ms) {
  const spans = [];
  flags.forEach((flag, i) => {
    if (!flag) return;
    if (i && flags[i - 1]) spans.at(-1)[1] += step_ms;
    else spans.push([start_ts + i * step_ms, start_ts + (i + 1) * step_ms]);
  });
  return spans;
}

/* ---- how fresh it is ---- */

export const age = () => `data to ${time(page.index.to_ts)} UTC, computed ${ago(page.index.generated_ts)}`;

/** A warning if the data is older than a few intervals of its computation. */
export function staleness() {
  const { interval_ms, generated_ts } = page.index;
  if (page.embedded || !interval_ms || Date.now() - generated_ts <= STALE_INTERVALS * interval_ms) return "";
  return `Stale: computed ${ago(generated_ts)}, and due every ${duration(interval_ms)}. Is keelmq analytics still running?`;
}

/** "10:41:07", with its day when the data spans more than one. */
export function time(ts, precise = false) {
  const { from_ts, to_ts } = page.index;
  return day(from_ts) === day(to_ts) ? clock(ts, precise) : `${day(ts).slice(5)} ${clock(ts, precise)}`;
}

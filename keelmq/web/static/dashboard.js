"use strict";
/* The page: what dashboard.json says in words, tables and charts (tables.js, charts.js).
 * In the report the data stands in the page; the live page fetches it and draws again when it changed. */

const POLL_MS = 5_000;
const FETCH_MS = 4_000;
const STATES = { master: "master", in_sync: "in sync", out: "out of sync" };
const REASONS = { caught_up: "caught up", lag: "fell behind", gone: "not active" };
const RECORDS = {
  ha_sample: "one a second from each broker",
  role_change: "finished role changes",
  controller_event: "what the controllers agreed on",
  send_gap: "fail-overs measured by a producer",
  corrupt: "damaged lines, skipped",
  confirm_above_max: "impossible: confirmOffset > maxOffset",
  epoch_gaps: "places where records are missing",
};
const RUN = "./run keelmq analytics run --input TELEMETRY --output OUT";
const DEMO = "./run keelmq demo";

const page = { data: null, etag: null, problem: "", open: new Set() };

/** "10:41:07", with its day when the data spans more than one. */
function time(ts, precise = false) {
  const { from_ts, to_ts } = page.data;
  return day(from_ts) === day(to_ts) ? clock(ts, precise) : `${day(ts).slice(5)} ${clock(ts, precise)}`;
}

const age = () => `data to ${time(page.data.to_ts)} UTC, computed ${ago(page.data.generated_ts)}`;
const groupKey = (group) => `${group.cluster_name}/${group.broker_name}`;
const replica = (id) => `replica ${id}`;
const gapsOf = (group) => group.failovers.map((each) => each.gap_ms).filter((ms) => ms !== null);

/* ---- a section: heading, content, data as a table and as CSV, age; or how to get data ---- */

function section({ name, title, lead, columns, rows, content, empty, table = true }) {
  const header = el("header", {}, el("div", {}, el("h2", { id: name }, title), el("p", { class: "lead" }, lead)));
  const card = el("section", { class: `card ${name}`, "aria-labelledby": name }, header);
  if (!rows.length) {
    card.append(el("div", { class: "empty" }, el("p", {}, empty[0]), el("code", {}, empty[1])));
    return card;
  }
  const download = () => save(`keelmq-${name}.csv`, csv(columns, rows));
  header.append(el("button", { type: "button", click: download, "aria-label": `${title}: download as CSV` }, "CSV"));
  const data = table ? tableBelow(name, () => dataTable(columns, rows, title)) : null;
  card.append(...content, el("div", { class: "foot" }, data, el("p", { class: "age" }, age())));
  return card;
}

/** A table that is made when it is opened, and stays open when the page is drawn again. */
function tableBelow(name, make) {
  const details = el("details", { open: page.open.has(name) ? "" : null }, el("summary", {}, "Data as a table"));
  const fill = () => {
    page.open[details.open ? "add" : "delete"](name);
    if (details.open && details.children.length === 1) details.append(make());
  };
  details.addEventListener("toggle", fill);
  fill();
  return details;
}

const tableSection = (rest) =>
  section({ table: false, content: [dataTable(rest.columns, rest.rows, rest.title), rest.below || ""], ...rest });

/** A section whose content is a chart, drawn once it stands in the page and has a size. */
function chartSection(charts, { option, most, height = 250, ...rest }) {
  const place = el("div", { class: "chart" });
  place.style.height = `${height}px`;
  const summary = most ? `, highest ${most}` : "";
  const label = `${rest.title}, a chart over time${summary}; the same data is in the table below.`;
  if (rest.rows.length) charts.push(() => Charts.draw(place, option(), label));
  return section({ ...rest, content: [place] });
}

function bar(pieces, whole, label) {
  const parts = pieces.filter(([, value]) => value > 0).map(([kind, value]) => {
    const part = el("i", { class: kind });
    part.style.width = `${Math.min(100, (100 * value) / Math.max(whole, 1))}%`;
    return part;
  });
  return el("div", { class: "bar", role: "img", "aria-label": label, title: label }, parts);
}

/* ---- the verdict, in words, and the totals ---- */

function groupRemarks({ totals, failovers, members }) {
  const gaps = gapsOf({ failovers });
  const gap = gaps.length ? `, the longest gap that a producer saw: ${duration(highest(gaps))}` : "";
  const remarks = [["good", failovers.length ? plural(failovers.length, "fail-over") + gap : "No fail-over"]];
  if (totals.unclean_elections) {
    const unclean = plural(totals.unclean_elections, "unclean election");
    remarks.push(["bad", `${unclean}: acknowledged messages may be lost`]);
  }
  if (!members.length) remarks.push(["warn", "no controller_event records: nobody knows who was in the SyncStateSet"]);
  else if (!totals.below_min_ms) remarks.push(["good", "SyncStateSet never below minInSyncReplicas"]);
  else remarks.push(["warn", `SyncStateSet below minInSyncReplicas for ${duration(totals.below_min_ms)}`]);
  const out = members.filter(({ spans }) => spans.length && spans.at(-1).state === "out");
  if (out.length) remarks.push(["warn", `at the end out of sync: replica ${list(out.map((each) => each.broker_id))}`]);
  return remarks;
}

function recordRemarks({ corrupt, epoch_gaps, confirm_above_max }) {
  return [
    [corrupt, "damaged line", "skipped"],
    [epoch_gaps, "gap", "in the epochs: records are missing"],
    [confirm_above_max, "sample", "with confirmOffset above maxOffset"],
  ].filter(([n]) => n).map(([n, noun, rest]) => ["warn", `${plural(n, noun)} ${rest}`]);
}

function verdict(group) {
  const remarks = [...groupRemarks(group), ...recordRemarks(page.data.rows)];
  const level = ["bad", "warn", "good"].find((each) => remarks.some(([found]) => found === each));
  const [sign, word] = { good: ["✓", "All well"], warn: ["!", "Worth a look"], bad: ["✕", "Data at risk"] }[level];
  return el("div", { class: `verdict ${level}` }, el("span", { class: "sign", "aria-hidden": "true" }, sign),
    el("p", {}, el("strong", {}, `${word}. `), `${remarks.map(([, text]) => text).join("; ")}.`));
}

function tiles(group) {
  const { totals, failovers, lag } = group;
  const gaps = gapsOf(group);
  const tile = (label, value, note) =>
    el("div", { class: "tile" }, el("dt", {}, label), el("dd", {}, value, el("small", {}, note)));
  return el("dl", { class: "tiles", "aria-label": "Totals" },
    failovers.length
      ? tile("Fail-overs", whole(failovers.length), `last at ${time(failovers.at(-1).elected_ts)}`)
      : tile("Fail-overs", "0", "none in this range"),
    gaps.length
      ? tile("Longest producer gap", duration(highest(gaps)), `of ${plural(gaps.length, "measured gap")}`)
      : tile("Longest producer gap", NONE, "no producer measured it"),
    lag.ts.length
      ? tile("Lag, worst p99", duration(highest(lag.ms_p99)), `max ${duration(highest(lag.ms_max))}`)
      : tile("Lag, worst p99", NONE, "no samples"),
    tile("Elections", whole(totals.elections), `${whole(totals.unclean_elections)} unclean`),
    tile("Shrinks / expands", `${whole(totals.shrinks)} / ${whole(totals.expands)}`, plural(totals.flaps, "flap")),
    tile("Below minimum", duration(totals.below_min_ms), "of minInSyncReplicas"));
}

/* ---- the charts ---- */

function membership(charts, group, range) {
  const { members, failovers } = group;
  return chartSection(charts, {
    name: "membership", title: "SyncStateSet membership", height: 116 + 34 * members.length,
    lead: "Who was master, in sync or out of it. Numbered lines are fail-overs. Drag the bar below to zoom every chart.",
    rows: members.flatMap(({ broker_id, spans }) => spans.map((span) => ({ ...span, broker_id }))),
    columns: [
      column("broker_id", "Replica", (row) => row.broker_id, { text: replica }),
      column("state", "State", (row) => row.state, { text: (state) => STATES[state] || state }),
      timeColumn("from", "From", (row) => row.from),
      timeColumn("to", "To", (row) => row.to),
      numberColumn("ms", "For", (row) => row.to - row.from, duration),
    ],
    empty: ["No controller_event records in this range. Controllers write them (telemetryEnable=true); then run", RUN],
    option: () => Charts.memberOption(range, failovers, members),
  });
}

function lagSection(charts, { lag, failovers }, range, { unit, text, keys, ...words }) {
  const names = ["p50", "p95", "p99", "max"];
  return chartSection(charts, {
    ...words, rows: lag.ts.map((_, i) => i), most: text(highest(lag[keys[3]])),
    columns: [
      timeColumn("ts", "Window", (i) => lag.ts[i]),
      numberColumn("samples", "Samples", (i) => lag.samples[i]),
      ...keys.map((key, k) => numberColumn(key, names[k], (i) => lag[key][i], text)),
    ],
    empty: ["No ha_sample records of a master in this range. Brokers write them (telemetryEnable=true); then run", RUN],
    option: () => Charts.lagOption(range, failovers, {
      unit, text,
      lines: keys.map((key, k) => ({ name: names[k], shade: k, ts: lag.ts, values: lag[key], dashed: k === 3 })),
    }),
  });
}

function replicaSection(charts, { replica_lag, failovers }, range, { unit, text, key, ...words }) {
  const rowsOf = ({ broker_id, ts, [key]: values }) => ts.map((at, i) => ({ at, broker_id, most: values[i] }));
  const rows = replica_lag.flatMap(rowsOf);
  return chartSection(charts, {
    ...words, rows, most: text(highest(rows.map((row) => row.most))),
    lead: "Behind its master, highest of the window. A hole: not connected, or itself the master.",
    columns: [
      timeColumn("ts", "Window", (row) => row.at),
      column("broker_id", "Replica", (row) => row.broker_id, { text: replica }),
      numberColumn(key, "Highest lag", (row) => row.most, text),
    ],
    empty: ["No master saw a replica in this range. A master samples its replicas once a second; then run", RUN],
    option: () => Charts.lagOption(range, failovers, {
      unit, text,
      lines: replica_lag.map(({ broker_id, ts, [key]: values }) => ({ name: replica(broker_id), broker_id, ts, values })),
    }),
  });
}

function lagSections(charts, group, range) {
  const ms = { unit: 1, text: duration };
  const size = { unit: 1_000, text: bytes };
  const replicas = (options) => replicaSection(charts, group, range, options);
  return el("div", { class: "pair" },
    lagSection(charts, group, range, {
      ...ms, name: "lag-ms", title: "confirmOffset lag, time", keys: ["ms_p50", "ms_p95", "ms_p99", "ms_max"],
      lead: "How long the oldest byte waited that its replicas had not confirmed.",
    }),
    lagSection(charts, group, range, {
      ...size, name: "lag-bytes", title: "confirmOffset lag, bytes",
      keys: ["bytes_p50", "bytes_p95", "bytes_p99", "bytes_max"],
      lead: "Written by the master, not yet confirmed by the SyncStateSet.",
    }),
    replicas({ ...ms, name: "replica-ms", title: "Lag per replica, time", key: "ms_max" }),
    replicas({ ...size, name: "replica-bytes", title: "Lag per replica, bytes", key: "bytes_max" }));
}

/* ---- the tables ---- */

function failoverTable({ failovers }) {
  const rows = failovers.map((each, i) => ({ ...each, number: i + 1 }));
  const parts = (row) => [["part-1", row.detect_ms], ["part-2", row.elect_ms], ["part-3", row.ready_ms]];
  const longest = highest(rows.map((row) => parts(row).reduce((sum, [, ms]) => sum + ms, 0)));
  const small = (text, kind = null) => (text ? el("small", { class: kind }, text) : null);
  const term = (kind, name, text) =>
    el("div", {}, el("dt", {}, kind && el("i", { class: `swatch ${kind}` }), name), el("dd", {}, text));
  return tableSection({
    name: "failovers", title: "Fail-overs",
    lead: "Every master that was replaced, and how long each part took; newest first.",
    rows: rows.reverse(),
    columns: [
      column("number", "#", (row) => row.number, { node: (row, text) => el("span", { class: "mark" }, text) }),
      timeColumn("elected_ts", "Elected", (row) => row.elected_ts),
      numberColumn("gap_ms", "Producer saw", (row) => row.gap_ms, duration),
      column("old_master", "Lost master", (row) => row.old_master, {
        text: replica, node: (row, text) => [text, small(row.killed_program && `${row.killed_program} killed`)],
      }),
      column("new_master", "New master", (row) => row.new_master, {
        text: replica, node: (row, text) => [text, small(row.unclean ? "unclean" : "", "danger")],
      }),
      numberColumn("detect_ms", "Detect", (row) => row.detect_ms, duration),
      numberColumn("elect_ms", "Elect", (row) => row.elect_ms, duration),
      numberColumn("ready_ms", "Ready", (row) => row.ready_ms, duration),
      // In the page the parts as lengths; in the CSV the program that was killed, which has no column of its own.
      column("killed_program", "Detect, elect, ready", (row) => row.killed_program, {
        node: (row) => bar(parts(row), longest, "detect, elect and ready as lengths"),
      }),
      numberColumn("master_epoch", "masterEpoch", (row) => row.master_epoch),
      column("reason", "Reason", (row) => row.reason),
    ],
    below: el("dl", { class: "terms" },
      term("part-1", "Detect", "from the fault, or where no producer told of it from the lost master's last heartbeat, until a controller knew"),
      term("part-2", "Elect", "until the new master was chosen"),
      term("part-3", "Ready", "until the controllers had agreed and it accepted messages"),
      term(null, "Producer saw", "from the fault until the first acknowledgement of a send that was started after it")),
    empty: ["No master was replaced in this range. To see one replaced, the demo kills masters under traffic:", DEMO],
  });
}

function outOfSync({ totals }, range) {
  const span = Math.max(range.to - range.from, 1);
  const rows = Object.entries(totals.out_of_sync_ms).map(([broker_id, ms]) => ({ broker_id, ms, share: ms / span }));
  return tableSection({
    name: "outofsync", title: "Time out of sync", lead: "Not in the SyncStateSet: stopped, restarting or behind.", rows,
    columns: [
      column("broker_id", "Replica", (row) => row.broker_id, { text: replica }),
      numberColumn("out_of_sync_ms", "Out of sync", (row) => row.ms, duration),
      column("share", "Share", (row) => row.share, { text: (share) => `${round(100 * share)} %`, num: true }),
      column("range", "Of the range", () => span, { node: (row) => bar([["out", row.share]], 1, "share as a length") }),
    ],
    empty: ["No replica is known in this range; run", RUN],
  });
}

function recordTable() {
  return tableSection({
    name: "records", title: "Records read", lead: "What all of this was computed from, and what was wrong with it.",
    rows: Object.entries(page.data.rows).map(([name, n]) => ({ name, n })), empty: ["Nothing was read; run", RUN],
    columns: [
      column("record", "Record", (row) => row.name), numberColumn("number", "Number", (row) => row.n),
      column("meaning", "Meaning", (row) => RECORDS[row.name] || ""),
    ],
  });
}

function changeTable({ changes }) {
  const words = { electMaster: "election", cleanBrokerData: "clean" };
  const word = (row) => words[row.type] ?? (row.left.length ? "shrink" : "expand");
  const chip = (row) => (row.unclean
    ? el("span", { class: "chip bad" }, `unclean ${word(row)}`)
    : el("span", { class: `chip ${word(row)}` }, word(row)));
  return tableSection({
    name: "changes", title: "Changes", lead: "What the controllers agreed on, newest first.",
    rows: [...changes].sort((a, b) => b.event_id - a.event_id),
    columns: [
      timeColumn("ts", "Time", (row) => row.ts),
      column("change", "Change", word, { node: chip }),
      column("left", "Left", (row) => row.left, { text: list }),
      column("joined", "Joined", (row) => row.joined, { text: list }),
      column("sync_state_set", "SyncStateSet", (row) => row.sync_state_set, { text: (ids) => `{${ids.join(", ")}}` }),
      numberColumn("sync_state_set_epoch", "its epoch", (row) => row.sync_state_set_epoch),
      column("master_broker_id", "Master", (row) => row.master_broker_id, { text: replica }),
      numberColumn("master_epoch", "masterEpoch", (row) => row.master_epoch),
      column("reason", "Reason", (row) => row.reason, { text: (reason) => REASONS[reason] || reason }),
      numberColumn("event_id", "Event", (row) => row.event_id),
    ],
    empty: ["The SyncStateSet did not change in this range. To see it change:", DEMO],
  });
}

const hashOf = (group) => `#group=${encodeURIComponent(groupKey(group))}`;

function groupTable(groups, current) {
  const worst = (values) => (values.length ? highest(values) : null);
  const link = (group, text) => el("a", { href: hashOf(group), "aria-current": group === current ? "true" : null }, text);
  return tableSection({
    name: "groups", title: "Groups", lead: "All broker groups of this data; choose one.", rows: groups,
    columns: [
      column("group", "Group", groupKey, { node: link }),
      numberColumn("failovers", "Fail-overs", (group) => group.failovers.length),
      numberColumn("gap_ms", "Longest gap", (group) => worst(gapsOf(group)), duration),
      numberColumn("ms_p99", "Worst p99 lag", (group) => worst(group.lag.ms_p99), duration),
      numberColumn("shrinks", "Shrinks", (group) => group.totals.shrinks),
      numberColumn("below_min_ms", "Below minimum", (group) => group.totals.below_min_ms, duration),
      numberColumn("unclean_elections", "Unclean", (group) => group.totals.unclean_elections),
    ],
  });
}

/* ---- the page ---- */

function footer({ inputs }) {
  return el("footer", {},
    el("p", {}, "Times are UTC. Lag axes are linear up to their first step, logarithmic above it; so zero shows too."),
    el("details", {}, el("summary", {}, plural(inputs.length, "input")),
      el("ul", {}, inputs.map((input) => el("li", {}, input)))));
}

function notice(title, text, command = null) {
  const code = command && el("code", {}, command);
  return el("section", { class: "card empty first" }, el("h2", {}, title), el("p", {}, text), code);
}

function header(groups, current) {
  const { from_ts, to_ts, window_ms } = page.data;
  const option = (group) =>
    el("option", { value: hashOf(group), selected: group === current ? "" : null }, groupKey(group));
  const choose = (event) => { location.hash = event.target.value; };
  const name = groups.length > 1
    ? el("select", { "aria-label": "Broker group", change: choose }, groups.map(option))
    : el("strong", {}, groupKey(current));
  const from = `${day(from_ts)} ${clock(from_ts)}`;
  const span = `${duration(to_ts - from_ts)} in windows of ${duration(window_ms)}`;
  document.querySelector("#group").replaceChildren(name, el("span", {}, `${from} – ${time(to_ts)} UTC, ${span}`));
}

function groupParts(data, charts) {
  const { groups, from_ts, to_ts, window_ms } = data;
  const range = { from: from_ts, to: to_ts, window: window_ms };
  const wanted = new URLSearchParams(location.hash.slice(1)).get("group");
  const group = groups.find((each) => groupKey(each) === wanted) || groups[0];
  header(groups, group);
  return [
    verdict(group), tiles(group), groups.length > 1 ? groupTable(groups, group) : "",
    membership(charts, group, range), failoverTable(group), lagSections(charts, group, range),
    el("div", { class: "pair" }, outOfSync(group, range), recordTable()), changeTable(group), footer(data),
  ];
}

function draw() {
  const { data } = page;
  const charts = [];
  let parts;
  if (!data) {
    parts = [notice("No data yet", page.problem)];
  } else if (data.groups.length) {
    parts = groupParts(data, charts);
  } else {
    const text = "The records that were read name no broker group. The demo writes some:";
    parts = [notice("No broker group", text, DEMO), recordTable(), footer(data)];
  }
  Charts.clear();
  document.querySelector("main").replaceChildren(...parts.filter((part) => part !== ""));
  charts.forEach((chart) => chart());
  tick();
  document.body.dataset.ready = "1";
}

/** What changes without new data: the ages, and whether the server answers. */
function tick() {
  const status = document.querySelector("#status");
  status.textContent = page.data ? page.problem : "";
  status.hidden = !status.textContent;
  if (page.data) document.querySelectorAll(".age").forEach((node) => { node.textContent = age(); });
}

function take(text) {
  const data = JSON.parse(text);
  if (data.v !== 1) throw new Error(`dashboard.json has version ${data.v}, this page draws version 1: compute it again`);
  page.data = data;
}

/** Whether there is something new to draw. */
async function refresh() {
  const headers = page.etag ? { "If-None-Match": page.etag } : {};
  const options = { headers, cache: "no-store", signal: AbortSignal.timeout(FETCH_MS) };
  const reply = await fetch("./v1/analytics/dashboard", options).catch(() => {
    throw new Error("The server does not answer");
  });
  if (reply.status === 304) return false;
  if (!reply.ok) {
    const body = await reply.json().catch(() => ({}));
    throw new Error(String(body.remark || body.detail || `the server answered ${reply.status}`));
  }
  take(await reply.text());
  page.etag = reply.headers.get("ETag");
  return true;
}

async function poll() {
  const before = page.problem;
  try {
    const fresh = await refresh();
    page.problem = "";
    if (fresh) draw();
  } catch (error) {
    const again = `This is the last data that it gave; asking again every ${POLL_MS / 1_000} s.`;
    page.problem = page.data ? `${error.message}. ${again}` : error.message;
    page.etag = null; // what could not be drawn is fetched again
    if (!page.data && page.problem !== before) draw();
  }
  tick();
  setTimeout(poll, POLL_MS);
}

function start() {
  const embedded = document.querySelector("#data");
  addEventListener("hashchange", () => page.data && draw());
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  setInterval(tick, 1_000);
  if (!embedded) {
    poll();
    return;
  }
  try {
    take(embedded.textContent);
    draw();
  } catch (error) {
    document.querySelector("main").replaceChildren(notice("This data cannot be drawn", error.message));
    throw error;
  }
}

start();

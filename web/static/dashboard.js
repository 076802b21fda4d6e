"use strict";
/* Draws dashboard.json: in the report, where the data is in the page, and live, where it is fetched.
 * Plain JavaScript without a build step. Every string of the data becomes a text node, never HTML.
 * Times are wall-clock ms UTC. snake_case means a key of dashboard.json, everywhere in these scripts. */

const POLL_MS = 5_000;
const FETCH_MS = 4_000;
const TABLE_ROWS_MAX = 500; // in the page; a CSV has all of them
const STATES = { master: "master", in_sync: "in sync", out: "out of sync" };
const REASONS = { caught_up: "caught up", lag: "fell behind", gone: "not active" };
const RECORDS = {
  ha_sample: "one a second from each broker", role_change: "finished role changes", controller_event: "what the controllers agreed on",
  send_gap: "fail-overs measured by a producer", corrupt: "damaged lines, skipped", confirm_above_max: "impossible: confirmOffset > maxOffset",
  epoch_gaps: "places where records are missing",
};
const RUN = "./run keelmq analytics run --input TELEMETRY --output OUT";

const page = { data: null, problem: "", open: new Set() };

/* ---- small tools ---- */

function el(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") node.addEventListener(name, value);
    else if (value !== null) node.setAttribute(name, value);
  }
  node.append(...children.flat().filter((child) => child !== null && child !== ""));
  return node;
}

const plural = (n, noun) => `${n.toLocaleString("en")} ${noun}${n === 1 ? "" : "s"}`;
const round = (value) => Number(value.toPrecision(3)).toLocaleString("en");

function duration(ms) {
  if (ms < 1_000) return `${round(ms)} ms`;
  if (ms < 60_000) return `${round(ms / 1_000)} s`;
  if (ms < 3_600_000) return `${round(ms / 60_000)} min`;
  return ms < 86_400_000 ? `${round(ms / 3_600_000)} h` : `${round(ms / 86_400_000)} days`;
}

function bytes(value) {
  const units = ["B", "kB", "MB", "GB", "TB"];
  const step = Math.min(units.length - 1, Math.floor(Math.log10(Math.max(value, 1)) / 3));
  return `${round(value / 1_000 ** step)} ${units[step]}`;
}

const day = (ts) => new Date(ts).toISOString().slice(0, 10);

/** "10:41:07", with its day when the data spans more than one. */
function time(ts, precise = false) {
  const clock = new Date(ts).toISOString().slice(11, precise ? 23 : 19);
  return page.data && day(page.data.from_ts) !== day(page.data.to_ts) ? `${day(ts)} ${clock}` : clock;
}

function age() {
  const { to_ts, generated_ts } = page.data;
  const steps = [[86_400, "days"], [3_600, "h"], [60, "min"], [1, "s"]];
  const past = (Date.now() - generated_ts) / 1_000;
  const step = steps.find(([seconds]) => past >= seconds);
  const ago = step ? `${Math.floor(past / step[0])} ${step[1]} ago` : "just now";
  return `data to ${time(to_ts)} UTC, computed ${ago}`;
}

const highest = (values) => values.reduce((most, value) => Math.max(most, value), 0);
const ids = (list) => (list.length ? list.join(", ") : "–");
const maybe = (value, text) => (value === null || value === undefined ? "–" : text(value));
const groupKey = (group) => `${group.cluster_name}/${group.broker_name}`;

/* ---- a table of data: in the page, and as CSV ---- */

/** `columns`: [{head, cell: row -> text or node, csv: row -> value, num}]. */
function dataTable(columns, rows, caption) {
  const shown = rows.slice(0, TABLE_ROWS_MAX);
  const kind = (column) => (column.num ? "num" : null);
  const body = shown.map((row) => el("tr", {}, columns.map((column) => el("td", { class: kind(column) }, column.cell(row)))));
  const cut = rows.length > shown.length ? ` (the first ${shown.length} of ${rows.length.toLocaleString("en")}; the CSV has all)` : "";
  return el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
    el("table", {}, el("caption", {}, caption + cut),
      el("thead", {}, el("tr", {}, columns.map((column) => el("th", { scope: "col", class: kind(column) }, column.head)))),
      el("tbody", {}, body)));
}

function csvField(value) {
  let text = String(value ?? "");
  if (typeof value === "string" && /^[=+\-@\t\r]/.test(text)) text = `'${text}`; // a spreadsheet would compute it
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

function saveCsv(name, columns, rows) {
  const value = (column, row) => csvField((column.csv || column.cell)(row));
  const lines = [columns.map((column) => csvField(column.head)), ...rows.map((row) => columns.map((column) => value(column, row)))];
  const url = URL.createObjectURL(new Blob([lines.map((line) => `${line.join(",")}\r\n`).join("")], { type: "text/csv" }));
  el("a", { href: url, download: `${name}.csv` }).click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

const timeColumn = (head, of) => ({ head, cell: (row) => maybe(of(row), (ts) => time(ts, true)), csv: (row) => maybe(of(row), (ts) => new Date(ts).toISOString()) });
const numberColumn = (head, of, text = String) => ({ head, num: true, cell: (row) => maybe(of(row), text), csv: of });

/* ---- a section: heading, age, its content, its table and CSV, or how to get data ---- */

function section({ name, title, lead, columns, rows, content, empty, table = true }) {
  const heading = el("h2", { id: name }, title);
  const head = el("header", {}, el("div", {}, heading, el("p", { class: "lead" }, lead)));
  const frame = el("section", { class: `card ${name}`, "aria-labelledby": name }, head);
  if (!rows.length) {
    frame.append(el("div", { class: "empty" }, el("p", {}, empty[0]), el("code", {}, empty[1])));
    return frame;
  }
  const save = el("button", { type: "button", click: () => saveCsv(`keelmq-${name}`, columns, rows), "aria-label": `${title}: download as CSV` }, "CSV");
  head.append(save);
  frame.append(...content);
  const foot = el("div", { class: "foot" });
  if (table) {
    const details = el("details", {}, el("summary", {}, "Data as a table"));
    const fill = () => details.children.length > 1 || details.append(dataTable(columns, rows, title));
    details.addEventListener("toggle", () => { page.open[details.open ? "add" : "delete"](name); if (details.open) fill(); });
    if (page.open.has(name)) { details.open = true; fill(); }
    foot.append(details);
  }
  foot.append(el("p", { class: "age" }, age()));
  frame.append(foot);
  return frame;
}

/** A section whose content is a chart; drawn once it stands in the page and has a size. */
function chartSection(charts, { option, label, height, ...rest }) {
  const place = el("div", { class: "chart" });
  place.style.height = `${height || 250}px`;
  if (rest.rows.length) charts.push(() => Charts.draw(place, option(), label));
  return section({ ...rest, content: [place] });
}

/* ---- the parts of the page ---- */

function verdict(group) {
  const { totals, failovers } = group;
  const gaps = failovers.filter((each) => each.gap_ms !== null).map((each) => each.gap_ms);
  const words = [failovers.length ? plural(failovers.length, "fail-over") : "No fail-over"];
  if (gaps.length) words[0] += `, the longest gap that a producer saw: ${duration(highest(gaps))}`;
  words.push(totals.below_min_ms ? `SyncStateSet below minInSyncReplicas for ${duration(totals.below_min_ms)}` : "SyncStateSet never below minInSyncReplicas");
  let level = totals.below_min_ms ? "warn" : "good";
  const out = group.members.filter((member) => (member.spans.at(-1) || {}).state === "out").map((member) => member.broker_id);
  if (out.length) {
    words.push(`at the end out of sync: replica ${ids(out)}`);
    level = "warn";
  }
  const { corrupt, confirm_above_max, epoch_gaps } = page.data.rows;
  const faults = [[corrupt, "damaged line", "skipped"], [epoch_gaps, "gap", "in the epochs: records are missing"], [confirm_above_max, "sample", "with confirmOffset above maxOffset"]];
  for (const [n, noun, rest] of faults.filter(([count]) => count)) {
    words.push(`${plural(n, noun)} ${rest}`);
    level = "warn";
  }
  if (totals.unclean_elections) {
    words.unshift(`${plural(totals.unclean_elections, "unclean election")}: acknowledged messages may be lost`);
    level = "bad";
  }
  const badge = { good: ["✓", "All well"], warn: ["!", "Worth a look"], bad: ["✕", "Data at risk"] }[level];
  return el("div", { class: `verdict ${level}` }, el("span", { class: "sign", "aria-hidden": "true" }, badge[0]),
    el("p", {}, el("strong", {}, `${badge[1]}. `), `${words.join("; ")}.`));
}

function tiles(group) {
  const { totals, failovers, lag } = group;
  const gaps = failovers.filter((each) => each.gap_ms !== null).map((each) => each.gap_ms);
  const tile = (label, value, note) => el("div", { class: "tile" }, el("dt", {}, label), el("dd", {}, value, el("small", {}, note)));
  return el("dl", { class: "tiles", "aria-label": "Totals" },
    tile("Fail-overs", String(failovers.length), failovers.length ? `last at ${time(failovers.at(-1).elected_ts)}` : "none in this range"),
    tile("Longest producer gap", gaps.length ? duration(highest(gaps)) : "–", gaps.length ? `of ${plural(gaps.length, "measured gap")}` : "no producer measured it"),
    tile("Lag, worst p99", lag.ts.length ? duration(highest(lag.ms_p99)) : "–", lag.ts.length ? `max ${duration(highest(lag.ms_max))}` : "no samples"),
    tile("Elections", String(totals.elections), `${totals.unclean_elections} unclean`),
    tile("Shrinks / expands", `${totals.shrinks} / ${totals.expands}`, plural(totals.flaps, "flap")),
    tile("Below minimum", duration(totals.below_min_ms), "of minInSyncReplicas"));
}

function membership(charts, group, range) {
  const rows = group.members.flatMap((member) => member.spans.map((span) => ({ ...span, broker_id: member.broker_id })));
  return chartSection(charts, {
    name: "membership", title: "SyncStateSet membership", height: 116 + 34 * group.members.length,
    lead: "Who was master, in sync or out of it. Numbered lines are fail-overs. Drag the bar below to zoom every chart.",
    rows, empty: ["No controller_event records in this range: they say who was in the SyncStateSet. Controllers write them with telemetryEnable=true; then run", RUN],
    columns: [numberColumn("replica", (row) => row.broker_id), { head: "state", cell: (row) => STATES[row.state] || row.state },
      timeColumn("from (UTC)", (row) => row.from), timeColumn("to (UTC)", (row) => row.to), numberColumn("for ms", (row) => row.to - row.from, (ms) => ms.toLocaleString("en"))],
    label: `Membership of ${plural(group.members.length, "replica")} over time; the same data is in the table below.`,
    option: () => Charts.memberOption(range, group.failovers, group.members),
  });
}

function failoverTable(group) {
  const rows = group.failovers.map((each, i) => ({ ...each, number: i + 1 }));
  const parts = (row) => [row.detect_ms, row.elect_ms, row.ready_ms];
  const longest = highest(rows.map((row) => parts(row).reduce((sum, ms) => sum + (ms || 0), 0)));
  const bar = (row) => {
    const label = parts(row).map((ms, i) => `${["detect", "elect", "ready"][i]} ${maybe(ms, duration)}`).join(", ");
    return el("div", { class: "bar", role: "img", "aria-label": label, title: label }, parts(row).map((ms, i) => {
      const piece = el("i", { class: `part-${i + 1}` });
      piece.style.width = `${(100 * (ms || 0)) / Math.max(longest, 1)}%`;
      return piece;
    }));
  };
  const columns = [
    { head: "#", cell: (row) => el("span", { class: "mark" }, String(row.number)), csv: (row) => row.number },
    timeColumn("Elected (UTC)", (row) => row.elected_ts),
    { head: "Lost master", cell: (row) => [maybe(row.old_master, (id) => `replica ${id}`), row.killed_program ? el("small", {}, `${row.killed_program} killed`) : ""], csv: (row) => [maybe(row.old_master, String), row.killed_program || ""].join(" ").trim() },
    { head: "New master", cell: (row) => [maybe(row.new_master, (id) => `replica ${id}`), row.unclean ? el("small", { class: "danger" }, "unclean") : ""], csv: (row) => maybe(row.new_master, String) },
    numberColumn("masterEpoch", (row) => row.master_epoch),
    { head: "Reason", cell: (row) => row.reason || "–" },
    numberColumn("Detect", (row) => row.detect_ms, duration), numberColumn("Elect", (row) => row.elect_ms, duration), numberColumn("Ready", (row) => row.ready_ms, duration),
    { head: "Detect, elect, ready", cell: bar, csv: (row) => parts(row).map((ms) => maybe(ms, String)).join(" + ") },
    { head: "Producer saw", num: true, cell: (row) => el("b", { class: "gap" }, maybe(row.gap_ms, duration)), csv: (row) => row.gap_ms },
  ];
  const term = (kind, name, text) => el("div", {}, el("dt", {}, el("i", { class: `swatch ${kind}` }), name), el("dd", {}, text));
  return section({
    name: "failovers", title: "Fail-overs", lead: "Every master that was replaced, and how long each part took.",
    rows, columns, table: false,
    empty: ["No master was replaced in this range. To see how that looks, the demo kills masters under traffic:", "./run keelmq demo"],
    content: [dataTable(columns, rows, "Fail-overs"), el("dl", { class: "terms" },
      term("part-1", "Detect", "from the last heartbeat of the lost master until a controller knew; healthy time between two heartbeats is in it"),
      term("part-2", "Elect", "until the election was agreed by the controllers"),
      term("part-3", "Ready", "until the new master accepted messages"),
      term("", "Producer saw", "from the fault until the first acknowledgement of a send that was started after it"))],
  });
}

function lagSection(charts, group, range, { unit, name, title, lead, text, keys }) {
  const { lag } = group;
  const labels = ["p50", "p95", "p99", "max"];
  const colors = [(look) => look.shades[0], (look) => look.shades[1], (look) => look.shades[2], (look) => look.max];
  const most = highest(lag[keys[3]]);
  return chartSection(charts, {
    name, title, lead, rows: lag.ts.map((_, i) => i),
    empty: ["No ha_sample records of a master in this range. Brokers write one a second with telemetryEnable=true; then run", RUN],
    columns: [timeColumn("window (UTC)", (i) => lag.ts[i]), numberColumn("samples", (i) => lag.samples[i]),
      ...keys.map((key, k) => numberColumn(key, (i) => lag[key][i], text))],
    label: `${title}: highest ${text(most)}; the same data is in the table below.`,
    option: () => Charts.lagOption(range, group.failovers, {
      unit, text, lines: keys.map((key, k) => ({ name: labels[k], color: colors[k], ts: lag.ts, values: lag[key], dashed: k === 3 })),
    }),
  });
}

function replicaSection(charts, group, range, { unit, name, title, text, key }) {
  const rows = group.replica_lag.flatMap((each) => each.ts.map((ts, i) => ({ ts, broker_id: each.broker_id, most: each[key][i] })));
  const symbols = ["circle", "rect", "triangle", "diamond", "emptyCircle", "emptyRect"];
  return chartSection(charts, {
    name, title, lead: "Each replica behind its master, highest of the window. A gap: not connected, or itself the master.", rows,
    empty: ["No replica was seen by a master in this range. A master samples its replicas once a second; then run", RUN],
    columns: [timeColumn("window (UTC)", (row) => row.ts), numberColumn("replica", (row) => row.broker_id), numberColumn(key, (row) => row.most, text)],
    label: `${title}: highest ${text(highest(rows.map((row) => row.most)))}; the same data is in the table below.`,
    option: () => Charts.lagOption(range, group.failovers, {
      unit, text, lines: group.replica_lag.map((each, i) => ({
        name: `replica ${each.broker_id}`, symbol: symbols[i % 6], color: (look) => look.replicas[i % 6], ts: each.ts, values: each[key],
      })),
    }),
  });
}

function outOfSync(group, range) {
  const rows = Object.entries(group.totals.out_of_sync_ms).map(([broker_id, ms]) => ({ broker_id, ms }));
  const span = Math.max(range.to - range.from, 1);
  const bar = (row) => {
    const piece = el("i", { class: "out" });
    piece.style.width = `${Math.min(100, (100 * row.ms) / span)}%`;
    return el("div", { class: "bar", "aria-hidden": "true" }, piece);
  };
  const columns = [{ head: "Replica", cell: (row) => `replica ${row.broker_id}`, csv: (row) => row.broker_id }, numberColumn("Out of sync", (row) => row.ms, duration),
    numberColumn("Share", (row) => `${round((100 * row.ms) / span)} %`), { head: "Of the range", cell: bar, csv: () => "" }];
  return section({
    name: "outofsync", title: "Time out of sync", lead: "How long each replica was not in the SyncStateSet: stopped, restarting or behind.",
    rows, columns, table: false, content: [dataTable(columns, rows, "Time out of sync")],
    empty: ["No replica is known in this range; run", RUN],
  });
}

function changeTable(group) {
  const rows = [...group.changes].sort((a, b) => b.event_id - a.event_id);
  const what = (row) => {
    if (row.type === "electMaster") return el("span", { class: `chip ${row.unclean ? "bad" : "elect"}` }, row.unclean ? "unclean election" : "election");
    return row.left.length ? el("span", { class: "chip shrink" }, "shrink") : el("span", { class: "chip" }, "expand");
  };
  const columns = [
    timeColumn("Time (UTC)", (row) => row.ts), { head: "Change", cell: what, csv: (row) => row.type },
    { head: "Left", cell: (row) => ids(row.left) }, { head: "Joined", cell: (row) => ids(row.joined) },
    { head: "SyncStateSet", cell: (row) => `{${row.sync_state_set.join(", ")}}` },
    numberColumn("its epoch", (row) => row.sync_state_set_epoch), numberColumn("Master", (row) => row.master_broker_id),
    numberColumn("masterEpoch", (row) => row.master_epoch), { head: "Reason", cell: (row) => REASONS[row.reason] || row.reason || "–" },
    numberColumn("Event", (row) => row.event_id),
  ];
  return section({
    name: "changes", title: "Changes", lead: "What the controllers agreed on, newest first.", rows, columns, table: false,
    content: [dataTable(columns, rows, "Changes")], empty: ["The SyncStateSet did not change in this range. To see it change:", "./run keelmq demo"],
  });
}

function groupTable(groups, current) {
  const columns = [
    { head: "Group", cell: (group) => el("a", { href: `#group=${encodeURIComponent(groupKey(group))}`, "aria-current": group === current ? "true" : null }, groupKey(group)), csv: groupKey },
    numberColumn("Fail-overs", (group) => group.failovers.length), numberColumn("Longest gap", (group) => highest(group.failovers.map((each) => each.gap_ms || 0)), duration),
    numberColumn("Worst p99 lag", (group) => highest(group.lag.ms_p99), duration), numberColumn("Shrinks", (group) => group.totals.shrinks),
    numberColumn("Below minimum", (group) => group.totals.below_min_ms, duration), numberColumn("Unclean", (group) => group.totals.unclean_elections),
  ];
  return section({ name: "groups", title: "Groups", lead: "All broker groups of this data; choose one.", rows: groups, columns, table: false, content: [dataTable(columns, groups, "Groups")], empty: [] });
}

function recordTable() {
  const rows = Object.entries(page.data.rows).map(([name, n]) => ({ name, n }));
  const columns = [{ head: "Records", cell: (row) => row.name }, numberColumn("Number", (row) => row.n, (n) => n.toLocaleString("en")),
    { head: "Meaning", cell: (row) => RECORDS[row.name] || "" }];
  return section({ name: "records", title: "Records read", lead: "What all of this was computed from, and what was wrong with it.", rows, columns, table: false, content: [dataTable(columns, rows, "Records read")], empty: [] });
}

function footer() {
  const { inputs } = page.data;
  return el("footer", {}, el("p", {}, "Times are UTC. Lag axes are linear up to their first step and logarithmic above it, so that zero and spikes both show."),
    el("details", {}, el("summary", {}, plural(inputs.length, "input")), el("ul", {}, inputs.map((input) => el("li", {}, input)))));
}

/* ---- the page ---- */

function chosenGroup(groups) {
  const wanted = new URLSearchParams(location.hash.slice(1)).get("group");
  return groups.find((group) => groupKey(group) === wanted) || groups[0];
}

function noData(lines, command) {
  return [el("section", { class: "card empty first" }, el("h2", {}, "No data yet"), lines.map((line) => el("p", {}, line)), el("code", {}, command))];
}

function groupParts(group, charts) {
  const { data } = page;
  const range = { from: data.from_ts, to: data.to_ts, window: data.window_ms };
  const ms = { unit: 1, text: duration };
  const size = { unit: 1_000, text: bytes };
  const lead = "The oldest byte that replicas had not confirmed: how long it waited.";
  return [
    verdict(group), tiles(group), data.groups.length > 1 ? groupTable(data.groups, group) : "",
    membership(charts, group, range), failoverTable(group),
    el("div", { class: "pair" },
      lagSection(charts, group, range, { ...ms, name: "lag-ms", title: "confirmOffset lag, time", lead, keys: ["ms_p50", "ms_p95", "ms_p99", "ms_max"] }),
      lagSection(charts, group, range, { ...size, name: "lag-bytes", title: "confirmOffset lag, bytes", lead: "Written by the master, not yet confirmed by the SyncStateSet.", keys: ["bytes_p50", "bytes_p95", "bytes_p99", "bytes_max"] }),
      replicaSection(charts, group, range, { ...ms, name: "replica-ms", title: "Lag per replica, time", key: "ms_max" }),
      replicaSection(charts, group, range, { ...size, name: "replica-bytes", title: "Lag per replica, bytes", key: "bytes_max" })),
    el("div", { class: "pair" }, outOfSync(group, range), recordTable()),
    changeTable(group), footer(),
  ];
}

function draw() {
  const main = document.querySelector("main");
  const charts = [];
  let parts;
  const groups = page.data ? page.data.groups : [];
  if (!page.data) {
    parts = noData([page.problem || "Nothing was computed yet."], RUN);
  } else if (!groups.length) {
    parts = [...noData(["There are no broker groups in the records that were read. Brokers and controllers write them with telemetryEnable=true; the demo does so too."], "./run keelmq demo"), footer()];
  } else {
    const group = chosenGroup(groups);
    drawPicker(groups, group);
    parts = groupParts(group, charts);
  }
  Charts.clear();
  main.replaceChildren(...parts.filter((part) => part !== ""));
  charts.forEach((start) => start());
  tick();
  document.body.dataset.ready = "1";
}

function drawPicker(groups, current) {
  const place = document.querySelector("#group");
  const { from_ts, to_ts, window_ms } = page.data;
  const choose = (event) => { location.hash = `group=${encodeURIComponent(event.target.value)}`; };
  const option = (group) => el("option", { value: groupKey(group), selected: group === current ? "" : null }, groupKey(group));
  const name = groups.length > 1 ? el("select", { "aria-label": "Broker group", change: choose }, groups.map(option)) : el("strong", {}, groupKey(current));
  const span = `${day(from_ts)} ${new Date(from_ts).toISOString().slice(11, 19)} – ${time(to_ts)} UTC`;
  place.replaceChildren(name, el("span", {}, `${span}, ${duration(to_ts - from_ts)} in windows of ${duration(window_ms)}`));
}

/** What changes without new data: the ages, and whether the server answers. */
function tick() {
  const badge = document.querySelector("#status");
  badge.textContent = page.problem && page.data ? page.problem : "";
  badge.hidden = !badge.textContent;
  if (page.data) document.querySelectorAll(".age").forEach((node) => { node.textContent = age(); });
}

function take(text) {
  const data = JSON.parse(text);
  if (data.v !== 1) throw new Error(`dashboard.json has version ${data.v}, this page reads version 1: use a page of the same release`);
  page.data = data;
}

async function poll() {
  let changed = false;
  try {
    const headers = page.etag ? { "If-None-Match": page.etag } : {};
    const reply = await fetch("./v1/analytics/dashboard", { headers, cache: "no-store", signal: AbortSignal.timeout(FETCH_MS) });
    if (reply.ok) {
      take(await reply.text());
      page.etag = reply.headers.get("ETag");
      changed = true;
    } else if (reply.status !== 304) {
      const body = await reply.json().catch(() => ({}));
      throw new Error(String(body.remark || body.detail || `the server answered ${reply.status}`));
    }
    page.problem = "";
  } catch (error) {
    const text = error.name === "TypeError" || error.name === "TimeoutError" ? "the server does not answer" : error.message;
    changed = !page.data && text !== page.problem;
    page.problem = page.data ? `${text}; this is the last data, trying again every ${POLL_MS / 1_000} s` : text;
  }
  if (changed) draw();
  else tick();
  setTimeout(poll, POLL_MS);
}

function start() {
  const embedded = document.querySelector("#data");
  addEventListener("hashchange", draw);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  setInterval(tick, 1_000);
  if (!embedded) {
    poll();
    return;
  }
  take(embedded.textContent);
  draw();
}

start();

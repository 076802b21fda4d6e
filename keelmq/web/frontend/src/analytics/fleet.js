/* The fleet: every group by time, worst first; all groups as a table. */

import { count, plural } from "../lib/format";
import { colours } from "../theme";
import { GLYPHS, KINDS, LEVELS, METRICS, SERIOUS, incidentTable, kindName, levelOf } from "./incidents";
import { liveSection } from "./live";
import { age, goTo, groupKey, hashOf, page, state, time, wholeNumber } from "./model";
import { RUN, footer, recordTable, tableSection, tile, verdictBox } from "./sections";
import { clock, column, duration, el, highest, numberColumn, round } from "./tables";

const FEW_COLUMNS = 8; // of a heat map that fits a phone
const ROWS = 40;
const COLUMNS = 300; // of the overview, if the worst stand first: the others are quiet
const metricOf = () => (METRICS[state().metric] ? state().metric : "incidents");
function matching() {
  const { q, sort } = state();
  const words = (q || "").toLowerCase().split(/\s+/).filter(Boolean);
  const text = (group) => groupKey(group).toLowerCase();
  const found = page.index.groups.filter((group) => words.every((word) => text(group).includes(word)));
  return sort === "name" ? [...found].sort((a, b) => groupKey(a).localeCompare(groupKey(b), "en", { numeric: true })) : found;
}

/** The incidents of each group, and in each of its cells the most serious kind. Made once for an index. */
function incidentsByGroup() {
  const { index } = page;
  if (page.byGroup && page.byGroup.index === index) return page.byGroup;
  const { incidents, start_ts, step_ms, columns } = index;
  const kinds = new Map();
  const cells = new Map();
  for (const each of incidents) {
    const key = groupKey(each);
    if (!kinds.has(key)) kinds.set(key, new Set());
    kinds.get(key).add(each.kind);
    if (!cells.has(key)) cells.set(key, Array(columns).fill(""));
    const row = cells.get(key);
    const last = Math.min(columns - 1, Math.floor((each.to - 1 - start_ts) / step_ms));
    for (let i = Math.max(0, Math.floor((each.from - start_ts) / step_ms)); i <= last; i += 1) {
      if ((LEVELS[each.kind] || 0) > (LEVELS[row[i]] || 0)) row[i] = each.kind;
    }
  }
  page.byGroup = { index, kinds, cells };
  return page.byGroup;
}

const kindAt = (group, i) => (incidentsByGroup().cells.get(groupKey(group)) || [])[i] || "";
const kindsOf = (group) => [...(incidentsByGroup().kinds.get(groupKey(group)) || [])].slice(0, 2);

function valueAt(group, metric, i) {
  if (metric !== "incidents") return (group[metric] || [])[i] ?? null;
  const kind = kindAt(group, i);
  const missing = (group.unknown_ms || [])[i] ?? page.index.step_ms;
  return missing >= page.index.step_ms ? null : LEVELS[kind] || 0;
}

/* ---- in words ---- */

function fleetVerdict() {
  const { groups, incidents, incidents_total, groups_total } = page.index;
  const counts = {};
  incidents.forEach(({ kind }) => { counts[kind] = (counts[kind] || 0) + 1; });
  const serious = incidents.filter(({ kind }) => SERIOUS.has(kind));
  const level = counts.unclean ? "failed" : incidents.length ? "warning" : "ok";
  const hit = groups.filter((group) => group.incidents).length;
  const kinds = Object.keys(KINDS).filter((kind) => counts[kind]).map((kind) => `${kindName(kind)} ${count(counts[kind])}`);
  const cut = groups_total > groups.length ? ` This page has the worst ${count(groups.length)} of ${plural(groups_total, "group")}.` : "";
  const text = incidents_total
    ? `${plural(incidents_total, "incident")} in ${count(hit)} of ${plural(groups_total, "group")}, ${count(serious.length)} serious: ${kinds.join(", ")}.`
    : `${plural(groups_total, "group")}, no incident.`;
  return verdictBox(level, text + cut);
}

function fleetTiles() {
  const { groups, groups_total, columns, step_ms } = page.index;
  const sum = (of) => groups.reduce((all, group) => all + (of(group) || 0), 0);
  const worst = highest(groups.map((group) => group.worst_p99_ms || 0));
  const unknown = sum((group) => group.unknown_total_ms);
  return el("dl", { class: "tiles", "aria-label": "Totals of the fleet" },
    tile("Groups", count(groups_total), `${count(groups.filter((group) => group.incidents).length)} with incidents`),
    tile("Worst p99 lag", duration(worst), "of a minute"),
    tile("Below minimum", duration(sum((group) => group.below_ms)), "all groups together"),
    tile("Fail-overs", count(sum((group) => group.failovers)), `${count(sum((group) => group.unclean_elections))} unclean`),
    tile("Flaps", count(sum((group) => group.flaps)), "left and came back"),
    tile("Unknown", duration(unknown), `${round((100 * unknown) / Math.max(1, groups.length * columns * step_ms))} % of the time`));
}

/* ---- the heat map ---- */

const cellText = (group, metric, i) => {
  const { start_ts, step_ms } = page.index;
  const { title, text } = METRICS[metric];
  const value = valueAt(group, metric, i);
  const kind = kindAt(group, i);
  const words = [value === null ? "unknown" : metric === "incidents" ? "" : `${title} ${text(value)}`, kind && kindName(kind)];
  return `${groupKey(group)}, ${time(start_ts + i * step_ms)}: ${words.filter(Boolean).join(", ") || "no incident"}`;
};

function heatClass(group, metric, i) {
  const { step_ms } = page.index;
  const level = levelOf(metric, valueAt(group, metric, i), step_ms);
  if (level === null) return "hu";
  const unknown = (group.unknown_ms || [])[i] || 0;
  return metric !== "unknown_ms" && unknown > step_ms / 100 ? `h${level} part` : `h${level}`;
}

function legend(metric) {
  const { names } = METRICS[metric];
  const item = (kind, text) => el("li", {}, el("i", { class: `heat ${kind}` }), text);
  return el("ul", { class: "legend", "aria-label": "Colours" },
    names.map((name, level) => item(`h${level}`, name)), item("hu", "unknown"), item("h0 part", "partly unknown"),
    el("li", {}, Object.entries(GLYPHS).map(([kind, glyph]) => `${glyph} ${kindName(kind)}`).join(" · ")));
}

/** The count fleet in one picture: a column for each group, time from top to bottom. */
function overview(matched, metric, first) {
  const byName = state().sort === "name";
  const groups = byName ? matched : matched.slice(0, Math.max(COLUMNS, first + ROWS));
  const { columns, start_ts, step_ms } = page.index;
  const canvas = el("canvas", {
    class: "overview", role: "img",
    "aria-label": `${plural(groups.length, "group")}, a column for each, time from top to bottom; the same data is in the rows below.`,
  });
  const place = el("div", { class: "overview-place" }, canvas);
  const paint = () => {
    const get = colours(place);
    const levels = [0, 1, 2, 3, 4, 5].map((level) => get(`heat-${level}`));
    const unknown = get("heat-unknown");
    const scale = devicePixelRatio || 1;
    const row = Math.max(3, Math.floor(132 / columns));
    canvas.width = Math.round(place.clientWidth * scale);
    canvas.height = Math.round(row * columns * scale);
    canvas.style.height = `${row * columns}px`;
    const draw = canvas.getContext("2d");
    const width = canvas.width / Math.max(1, groups.length);
    // The quiet ones first: where two groups share a pixel, the worse one shows.
    for (let g = groups.length - 1; g >= 0; g -= 1) {
      const left = Math.floor(g * width);
      const wide = Math.max(Math.ceil(scale), Math.floor((g + 1) * width) - left);
      for (let i = 0; i < columns; i += 1) {
        const level = levelOf(metric, valueAt(groups[g], metric, i), step_ms);
        draw.fillStyle = level === null ? unknown : levels[level];
        draw.fillRect(left, Math.floor(i * row * scale), wide, Math.ceil(row * scale));
      }
    }
    draw.strokeStyle = get("text");
    draw.lineWidth = 1.5 * scale;
    draw.strokeRect(first * width + scale, scale, Math.min(ROWS, groups.length - first) * width - 2 * scale, canvas.height - 2 * scale);
  };
  canvas.addEventListener("click", (event) => {
    const at = Math.floor((event.offsetX / canvas.clientWidth) * groups.length);
    goTo({ page: String(Math.floor(at / ROWS) + 1) });
  });
  canvas.addEventListener("mousemove", (event) => {
    const group = groups[Math.min(groups.length - 1, Math.floor((event.offsetX / canvas.clientWidth) * groups.length))];
    const i = Math.min(columns - 1, Math.floor((event.offsetY / canvas.clientHeight) * columns));
    canvas.title = group ? cellText(group, metric, i) : "";
  });
  place.append(el("p", { class: "lead" }, `${
    groups.length < matched.length ? `The worst ${count(groups.length)} of ${plural(matched.length, "group")}` : `All ${plural(groups.length, "group")}`
  }, one a column, ${byName ? "by name" : "worst on the left"}; from ${time(start_ts)} (top) to ${
    time(start_ts + columns * step_ms)}. The frame is what stands below; click to move it.`));
  return [place, paint];
}

/** Rows of the heat map: arrow keys move, Enter opens the group at that time. */
function heatRows(groups, metric) {
  const { columns, start_ts, step_ms } = page.index;
  const head = Array.from({ length: columns }, (_, i) => {
    const ts = start_ts + i * step_ms;
    const every = Math.ceil(columns / 12);
    return el("th", { scope: "col" }, i % every || i + every > columns ? "" : step_ms >= 3_600_000 ? clock(ts).slice(0, 5) : clock(ts));
  });
  const open = (cell) => {
    const group = groups[Number(cell.dataset.row)];
    const from = start_ts + Number(cell.dataset.column) * step_ms;
    location.hash = hashOf(group, { from: String(from - step_ms), to: String(from + 2 * step_ms) });
  };
  const body = groups.map((group, row) => el("tr", {},
    el("th", { scope: "row" }, el("a", { href: hashOf(group) }, groupKey(group)),
      el("small", {}, kindsOf(group).map((kind) => el("span", { class: `chip ${SERIOUS.has(kind) ? "failed" : "shrink"}` }, kindName(kind))))),
    Array.from({ length: columns }, (_, i) => el("td", {
      class: `heat ${heatClass(group, metric, i)}`, title: cellText(group, metric, i).slice(groupKey(group).length + 2),
      tabindex: row === 0 && i === 0 ? "0" : "-1", "data-row": String(row), "data-column": String(i),
    }, GLYPHS[kindAt(group, i)] || ""))));
  const table = el("table", { class: columns > FEW_COLUMNS ? "heatmap" : "heatmap few", role: "grid" },
    el("caption", {}, `${METRICS[metric].title} of each group, by time`),
    el("thead", {}, el("tr", {}, el("th", { scope: "col" }, "Group"), head)), el("tbody", {}, body));
  table.addEventListener("click", (event) => {
    const cell = event.target.closest("td.heat");
    if (cell) open(cell);
  });
  table.addEventListener("keydown", (event) => {
    const cell = event.target.closest("td.heat");
    const move = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
    if (!cell) return;
    if (event.key === "Enter" || event.key === " ") open(cell);
    else if (move) {
      const [row, column] = [Number(cell.dataset.row) + move[0], Number(cell.dataset.column) + move[1]];
      const next = table.querySelector(`td[data-row="${row}"][data-column="${column}"]`);
      if (next) {
        cell.tabIndex = -1;
        next.tabIndex = 0;
        next.setAttribute("aria-label", cellText(groups[row], metric, column));
        next.focus();
      }
    } else return;
    event.preventDefault();
  });
  return table;
}

function heatMap(charts) {
  const groups = matching();
  const metric = metricOf();
  const pages = Math.max(1, Math.ceil(groups.length / ROWS));
  const number = Math.min(pages, Math.max(1, wholeNumber(state().page) || 1));
  const first = (number - 1) * ROWS;
  const shown = groups.slice(first, first + ROWS);
  const pick = (label, key, options, current) => el("label", {}, `${label} `,
    el("select", { change: (event) => goTo({ [key]: event.target.value, page: null }) },
      Object.entries(options).map(([value, name]) => el("option", { value, selected: value === current ? "" : null }, name))));
  const search = el("input", {
    type: "search", placeholder: "cluster or broker name", value: state().q || "", "aria-label": "Search groups", id: "search",
    input: (event) => {
      clearTimeout(page.typing);
      page.typing = setTimeout(() => goTo({ q: event.target.value, page: null }), 250);
    },
  });
  const turn = (to, text) => el("button", {
    type: "button", click: () => goTo({ page: String(to) }), disabled: to < 1 || to > pages ? "" : null,
  }, text);
  const titles = Object.fromEntries(Object.entries(METRICS).map(([key, { title }]) => [key, title]));
  const controls = el("div", { class: "controls" },
    pick("Colour", "metric", titles, metric), pick("Order", "sort", { worst: "worst first", name: "by name" }, state().sort || "worst"),
    search, el("span", { class: "pager" }, turn(number - 1, "‹ Previous"),
      el("span", {}, groups.length ? `${count(first + 1)}–${count(first + shown.length)} of ${count(groups.length)}` : "no group matches"),
      turn(number + 1, "Next ›")));
  const [picture, paint] = overview(groups, metric, first);
  if (groups.length) charts.push(paint);
  return el("section", { class: "card fleet", "aria-labelledby": "fleet" },
    el("header", {}, el("div", {}, el("h2", { id: "fleet" }, `Fleet: ${METRICS[metric].title}`),
      el("p", { class: "lead" }, "Choose a cell to open its group at that time. Keyboard: Tab to the cells, arrows move, Enter opens."))),
    controls, legend(metric), groups.length ? picture : "",
    el("div", { class: "scroll tall", role: "region", "aria-label": "Heat map" }, heatRows(shown, metric)),
    el("div", { class: "foot" }, el("p", { class: "age" }, age())));
}

/* ---- tables ---- */

function fleetTable() {
  const link = (group, text) => el("a", { href: hashOf(group) }, text);
  const rows = matching();
  return tableSection({
    name: "groups", title: "Groups", lead: "All broker groups of this data; choose one.", rows,
    columns: [
      column("group", "Group", groupKey, { node: link }),
      numberColumn("incidents", "Incidents", (group) => group.incidents),
      numberColumn("worst_p99_ms", "Worst p99 lag", (group) => group.worst_p99_ms, duration),
      numberColumn("worst_ms", "Highest lag", (group) => group.worst_ms, duration),
      numberColumn("below_ms", "Below minimum", (group) => group.below_ms, duration),
      numberColumn("availability", "Available", (group) => group.availability, (share) => `${(100 * share).toFixed(3)} %`),
      numberColumn("failovers", "Fail-overs", (group) => group.failovers),
      numberColumn("longest_gap_ms", "Longest gap", (group) => group.longest_gap_ms, duration),
      numberColumn("unclean_elections", "Unclean", (group) => group.unclean_elections),
      numberColumn("shrinks", "Shrinks", (group) => group.shrinks),
      numberColumn("flaps", "Flaps", (group) => group.flaps),
      numberColumn("unknown_total_ms", "Unknown", (group) => group.unknown_total_ms, duration),
    ],
    empty: ["No group matches the search. Clear it, or run", RUN],
  });
}

export function fleetParts(charts) {
  const { incidents, incidents_total } = page.index;
  return [fleetVerdict(), fleetTiles(), liveSection(), heatMap(charts), incidentTable(incidents, incidents_total), fleetTable(), recordTable(), footer()];
}

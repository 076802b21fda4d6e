/* The page itself: fleet or group, by its address. In the report the data stands in the page; the live page
 * fetches it, asks again for newer data, and fetches finer windows where it is zoomed into. */

import { plural } from "../lib/format";
import { look } from "../theme";
import * as Charts from "./charts";
import { fleetParts } from "./fleet";
import { groupParts } from "./group";
import { liveTick } from "./live";
import { FLEET, POLL_MS, age, checked, chosen, fleetHash, goTo, groupKey, hashOf, hashWith, page, refresh, staleness, state, time } from "./model";
import { DEMO, footer, recordTable } from "./sections";
import { TABLE_ROWS_MAX, clock, day, duration, el } from "./tables";

const ZOOM_MS = 400;

function notice(title, text, command = null) {
  const code = command && el("code", {}, command);
  return el("section", { class: "card empty first" }, el("h2", {}, title), el("p", {}, text), code);
}

function header(current) {
  const { from_ts, to_ts, groups } = page.index;
  const name = current ? el("strong", {}, groupKey(current)) : el("strong", {}, plural(page.index.groups_total, "group"));
  const span = el("span", {}, `${day(from_ts)} ${clock(from_ts)} – ${time(to_ts)} UTC, ${duration(to_ts - from_ts)}`);
  const choose = el("select", { "aria-label": "Broker group", change: (event) => { location.hash = event.target.value; } },
    [["Fleet", fleetHash(), !current], ...groups.slice(0, TABLE_ROWS_MAX).map((each) => [groupKey(each), hashOf(each), each === current])]
      .map(([text, value, isChosen]) => el("option", { value, selected: isChosen ? "" : null }, text)));
  document.querySelector("#group").replaceChildren(groups.length > 1 && current ? choose : name, span);
}

function parts(charts) {
  if (!page.index) return [notice("No data yet", page.problem)];
  if (!page.index.groups.length) {
    return [notice("No broker group", "The records that were read name no broker group. The demo writes some:", DEMO), recordTable(), footer()];
  }
  const current = chosen();
  header(current);
  if (!current) return fleetParts(charts);
  if (!page.group) return [notice("No data for this time", page.problem || "Fetching it"), el("p", {}, el("a", { href: hashWith({ from: null, to: null }) }, "Show the newest data"))];
  return groupParts(page.group, charts);
}

function draw() {
  const charts = [];
  const focused = document.activeElement && document.activeElement.id;
  const found = parts(charts);
  Charts.clear();
  document.querySelector("main").replaceChildren(...found.filter((part) => part !== ""));
  charts.forEach((chart) => chart());
  tick();
  if (focused === "search") {
    const search = document.querySelector("#search");
    search.focus();
    search.setSelectionRange(search.value.length, search.value.length);
  }
  document.body.dataset.ready = "1";
  if (page.index) document.body.dataset.drawn ??= String(Math.round(performance.now())); // ms, for measurements
}

/** What changes without new data: the ages, whether they are too old, and whether the server answers. */
function tick() {
  const status = document.querySelector("#status");
  status.textContent = page.index ? page.problem || staleness() : "";
  status.hidden = !status.textContent;
  if (page.index) document.querySelectorAll(".age").forEach((node) => { node.textContent = age(); });
  liveTick();
}

/** Fetches and draws; `always`: the address has changed, so it is drawn even if nothing is new. */
async function update(always) {
  const before = page.problem;
  try {
    const fresh = await refresh();
    page.problem = "";
    if (fresh || always) draw();
  } catch (error) {
    const again = `Asking again every ${POLL_MS / 1_000} s.`;
    page.problem = page.index ? `${error.message}. ${again}` : error.message;
    page.etags = {}; // what could not be drawn is fetched again
    if (page.index ? always : page.problem !== before) draw();
  }
  tick();
}

async function poll() {
  await update(false);
  setTimeout(poll, POLL_MS);
}

/** The part of the time that is zoomed into, in finer windows if the server has some. */
function zoomed(start, end) {
  clearTimeout(page.zooming);
  const { range, finest_ms } = page.group;
  if (page.embedded || end - start > 99 || range.window <= finest_ms) return;
  const at = (percent) => Math.round(range.from + ((range.to - range.from) * percent) / 100);
  page.zooming = setTimeout(() => {
    Charts.zoom.shown = null;
    goTo({ from: String(at(start)), to: String(at(end)) });
  }, ZOOM_MS);
}

let shown = null;

async function moved() {
  const { group, from, to } = state();
  const place = JSON.stringify([group, from, to]);
  if (place === shown && page.index) {
    draw(); // a search, a colour or a replica: the data is here
    return;
  }
  if (shown !== null) {
    Charts.zoom.shown = null;
    page.group = null;
  }
  shown = place;
  page.etags = { [FLEET]: page.etags[FLEET] };
  await update(true);
}

export function start() {
  const embedded = document.querySelector("#data");
  Charts.zoom.changed = zoomed;
  addEventListener("hashchange", moved);
  look.watch(draw);
  setInterval(tick, 1_000);
  const { group, from, to } = state();
  shown = JSON.stringify([group, from, to]);
  if (!embedded) {
    poll();
    return;
  }
  try {
    const data = checked(JSON.parse(embedded.textContent));
    page.embedded = data;
    page.index = data.index;
    update(true);
  } catch (error) {
    document.querySelector("main").replaceChildren(notice("This data cannot be drawn", error.message));
    throw error;
  }
}

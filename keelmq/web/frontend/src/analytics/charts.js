/* The time charts of a dashboard: ECharts options and nothing else. Strings go into SVG text and into
 * elements made by `el`, never into HTML. snake_case means a key of the page files, everywhere. */

import { LineChart } from "echarts/charts";
import {
  DataZoomSliderComponent, GridComponent, LegendComponent, MarkAreaComponent, MarkLineComponent, TooltipComponent,
} from "echarts/components";
import { init, use } from "echarts/core";
import { SVGRenderer } from "echarts/renderers";
import { colours } from "../theme";
import { time } from "./model";
import { STATES, replica } from "./states";
import { duration, el } from "./tables";

use([LineChart, DataZoomSliderComponent, GridComponent, LegendComponent, MarkAreaComponent, MarkLineComponent, TooltipComponent, SVGRenderer]);

const LABELS_MAX = 30; // more would cover each other
const SYMBOLS = ["circle", "rect", "triangle", "diamond", "emptyCircle", "emptyRect"];
const drawn = []; // every chart on the page, to resize and zoom together

/** What every chart on the page is zoomed to, in per cent of the time shown, and what is told of it. */
export const zoom = { shown: null, changed: () => {} };

/** The colours and the font of the page, so that dark and light are decided in one place: the CSS. */
function theme() {
  const get = colours(document.body);
  return {
    text: get("text"), dim: get("dim"), line: get("line"), card: get("card"), grid: get("grid"),
    unknown: get("heat-unknown"), mark: get("mark"),
    master: get("master"), in_sync: get("in-sync"), out: get("out"), catching_up: get("catching-up"),
    disconnected: get("disconnected"), down: get("down"), removed: get("removed"),
    shades: [get("shade-1"), get("shade-2"), get("shade-3"), get("out")],
    replicas: [1, 2, 3, 4, 5, 6].map((n) => get(`replica-${n}`)),
    font: getComputedStyle(document.body).fontFamily,
  };
}

/* Lag is nearly always small and sometimes huge. So: linear up to `unit`, a power of ten per step above,
 * and zero stays zero, which a logarithmic axis cannot show. */
const squash = (value, unit) => (value <= unit ? value / unit : 1 + Math.log10(value / unit));
const unsquash = (y, unit) => (y <= 1 ? y * unit : unit * 10 ** (y - 1));

/** Points in the middle of their windows; a hole wherever windows have no sample. */
function points(ts, values, windowMs, unit) {
  const result = [];
  ts.forEach((start, i) => {
    if (i && start - ts[i - 1] > 1.5 * windowMs) result.push([ts[i - 1] + windowMs, null]);
    result.push([start + windowMs / 2, values[i] === null ? null : squash(values[i], unit)]);
  });
  return result;
}

function tip(title, rows) {
  const line = ([color, name, value]) => {
    const swatch = el("i", { class: "swatch" });
    swatch.style.background = color;
    return el("div", {}, swatch, el("span", {}, name), el("b", {}, value));
  };
  return el("div", { class: "tip" }, el("strong", {}, title), ...rows.map(line));
}

/** What all charts share: UTC, the same left edge, the fail-overs as numbered marks, one zoom. */
function base(look, range, left) {
  const axis = {
    axisLine: { lineStyle: { color: look.line } }, axisTick: { show: false },
    axisLabel: { color: look.dim, hideOverlap: true },
  };
  return {
    useUTC: true,
    animation: false,
    textStyle: { fontFamily: look.font, color: look.text },
    grid: { left, right: 14, top: 40, bottom: 26, outerBoundsMode: "none" },
    legend: { top: 0, left: 0, itemWidth: 16, itemHeight: 10, itemGap: 14, textStyle: { color: look.text } },
    tooltip: {
      trigger: "axis", confine: true, backgroundColor: look.card, borderColor: look.line, padding: 0,
      axisPointer: { type: "line", axis: "x", lineStyle: { color: look.dim } },
    },
    xAxis: {
      ...axis, type: "time", min: range.from, max: range.to, splitLine: { show: false },
      axisLabel: { ...axis.axisLabel, formatter: (ts) => time(ts) },
    },
    yAxis: { ...axis, splitLine: { lineStyle: { color: look.grid } } },
    dataZoom: [{ type: "slider", show: false, filterMode: "filter" }],
  };
}

function marks(look, failovers, position = "end") {
  return {
    silent: true, symbol: "none", animation: false,
    lineStyle: { color: look.mark, type: [3, 3], width: 1.25 },
    label: {
      show: failovers.length <= LABELS_MAX, position, formatter: "{b}", distance: 4,
      color: look.card, backgroundColor: look.mark,
      padding: [2, 6], borderRadius: 8, fontSize: 10, fontWeight: "bold",
    },
    data: failovers.map((each, i) => ({ name: String(i + 1), xAxis: each.elected_ts })),
  };
}

/** Time without data: grey bands with a dashed edge, behind the lines. */
function unknownAreas(look, unknown) {
  const names = (i) => (i < LABELS_MAX / 3 ? "unknown" : "");
  return {
    silent: true, animation: false, itemStyle: { color: look.unknown, opacity: 0.45, borderColor: look.dim, borderType: "dashed", borderWidth: 0.5 },
    label: { color: look.dim, fontSize: 10, position: "insideBottom" },
    data: unknown.map(([from, to], i) => [{ name: names(i), xAxis: from }, { xAxis: to }]),
  };
}

/** A replica keeps its colour and its symbol, whoever else is in the data. */
const turn = (line) => ((line.broker_id ?? 1) + 5) % 6;
const colorOf = (look, line) => (line.shade === undefined ? look.replicas[turn(line)] : look.shades[line.shade]);

/** `lines`: [{name, shade or broker_id, ts, values, dashed}]; `text` writes a number, `unit` is of `squash`. */
export function lagOption(range, failovers, { lines, unit, text, unknown }) {
  const look = theme();
  const option = base(look, range, 64);
  const dense = lines.some((line) => line.ts.length > 300);
  const series = lines.map((line, i) => ({
    type: "line", name: line.name, color: colorOf(look, line), data: points(line.ts, line.values, range.window, unit),
    sampling: "max", // where a pixel holds many windows, the worst of them
    showSymbol: line.values.filter((value) => value !== null).length <= 80, symbol: SYMBOLS[turn(line)], symbolSize: 4,
    lineStyle: { width: dense || line.dashed ? 1.25 : 2, type: line.dashed && (!dense || line.broker_id) ? [4, 3] : "solid" },
    emphasis: { disabled: true },
    markLine: i ? undefined : marks(look, failovers), markArea: i ? undefined : unknownAreas(look, unknown),
  }));
  const highest = Math.max(0, ...lines.flatMap((line) => line.values.map((value) => squash(value, unit))));
  option.yAxis = {
    ...option.yAxis, type: "value", min: 0, max: Math.max(2, Math.ceil(highest)), interval: 1,
    axisLabel: { ...option.yAxis.axisLabel, formatter: (y) => text(unsquash(y, unit)) },
  };
  option.tooltip.formatter = (params) => {
    const found = params.filter((each) => each.value[1] !== null);
    if (!found.length) return "";
    const start = found[0].value[0] - range.window / 2;
    return tip(`${time(start)} UTC, ${duration(range.window)}`,
      found.map((each) => [each.color, each.seriesName, text(Math.round(unsquash(each.value[1], unit)))]));
  };
  return { ...option, series };
}

/** One bar per replica. State is colour and thickness, so that it can be told without colours. */
export function memberOption(range, failovers, members, unknown) {
  const look = theme();
  const option = base(look, range, 84);
  const width = { master: 22, in_sync: 12, catching_up: 8, disconnected: 6, down: 4, out: 4, removed: 2 };
  const found = new Set(members.flatMap(({ spans }) => spans.map(({ state }) => state)));
  const series = Object.keys(width).filter((state) => found.has(state) || state === "master").map((state, i) => ({
    type: "line", name: STATES[state], color: look[state],
    data: members.flatMap((member, y) => member.spans.filter((span) => span.state === state)
      .flatMap((span) => [[span.from, y], [span.to, y], [span.to, null]])),
    // An absence shorter than a pixel still shows: the ends of the line are marks of two pixels.
    symbol: "rect", symbolSize: [2, width[state]], showSymbol: true, showAllSymbol: true,
    lineStyle: { width: width[state], cap: "butt", type: state === "removed" ? [2, 4] : "solid" }, emphasis: { disabled: true },
    markLine: i ? undefined : marks(look, failovers, "start"), // the axis is inverse: its start is on top
    markArea: i ? undefined : { ...unknownAreas(look, unknown), label: { show: false } },
  }));
  const stateAt = (member, ts) => (member.spans.find((span) => span.from <= ts && ts < span.to) || {}).state;
  option.tooltip.formatter = (params) => {
    const ts = params[0].axisValue;
    return tip(`${time(ts, true)} UTC`, members.map((member) => {
      const state = stateAt(member, ts);
      return [look[state] || look.line, replica(member.broker_id), STATES[state] || "not known"];
    }));
  };
  option.xAxis.axisPointer = { snap: false }; // to what is under the mouse, not to the nearest change
  option.legend.icon = "rect";
  option.grid.bottom = 62;
  option.yAxis = {
    ...option.yAxis, type: "category", inverse: true, splitLine: { show: false },
    data: members.map((member) => replica(member.broker_id)), axisLabel: { color: look.text, margin: 14 },
  };
  option.dataZoom = [{
    type: "slider", filterMode: "none", bottom: 6, height: 20, left: 84, right: 14, showDataShadow: false,
    borderColor: look.line, fillerColor: look.master.replace(")", " / 13%)").replaceAll(", ", " "), backgroundColor: "transparent", brushSelect: false,
    labelFormatter: (value) => time(value), textStyle: { color: look.dim, fontSize: 10 },
    handleStyle: { color: look.card, borderColor: look.dim }, moveHandleSize: 0,
    dataBackground: { lineStyle: { opacity: 0 }, areaStyle: { opacity: 0 } },
  }];
  return { ...option, series };
}

export function draw(place, option, label) {
  place.setAttribute("role", "img");
  place.setAttribute("aria-label", label);
  const chart = init(place, null, { renderer: "svg" });
  chart.setOption(option);
  chart.on("datazoom", ({ start, end }) => {
    zoom.shown = { start, end };
    zoom.changed(start, end);
    for (const other of drawn) {
      if (other !== chart) other.dispatchAction({ type: "dataZoom", start, end }, { silent: true });
    }
  });
  if (zoom.shown) chart.dispatchAction({ type: "dataZoom", ...zoom.shown }, { silent: true });
  drawn.push(chart);
}

export function clear() {
  while (drawn.length) drawn.pop().dispose();
}

addEventListener("resize", () => drawn.forEach((chart) => chart.resize()));

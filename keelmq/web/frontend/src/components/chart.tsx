/** A line chart (uPlot) in the colours of the page. Charts with the same `group` share their cursor. */

import { useEffect, useMemo, useRef } from "preact/hooks";
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import { useStore } from "../lib/store";
import { colours, look } from "../theme";

export interface Series {
  label: string;
  /** As long as times; null: not known, the line has a gap. */
  values: readonly (number | null)[];
}

export interface Mark {
  timeMs: number;
  label: string;
}

interface Props {
  title: string;
  timesMs: readonly number[];
  series: readonly Series[];
  /** Such as format.bytes. */
  format: (value: number | null) => string;
  marks?: readonly Mark[];
  group?: string;
  height?: number;
  /** Bytes: the axis has powers of two. */
  isBytes?: boolean;
}

const DECIMAL = Array.from({ length: 48 }, (_, at) => [1, 2, 5][at % 3]! * 10 ** Math.floor(at / 3));
const BINARY = Array.from({ length: 50 }, (_, at) => 2 ** at);
const MINUTE_S = 60;

const COLOURS = 6;

export function Chart(props: Props) {
  const box = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const marks = useRef<readonly Mark[]>([]);
  marks.current = props.marks ?? [];
  const looks = useStore(look);
  const labels = props.series.map((each) => each.label).join("\n");
  const data = useMemo(() => dataOf(props.timesMs, props.series), [props.timesMs, props.series]);

  useEffect(() => {
    const element = box.current;
    if (!element) return;
    const made = new uPlot(optionsOf(props, element, () => marks.current), data, element);
    plot.current = made;
    const drawn = requestAnimationFrame(() => showLast(made)); // uPlot draws, and resets the legend, later
    const resized = new ResizeObserver(() => made.setSize({ width: element.clientWidth, height: props.height ?? 180 }));
    resized.observe(element);
    return () => {
      cancelAnimationFrame(drawn);
      resized.disconnect();
      made.destroy();
      plot.current = null;
    };
  }, [labels, looks, props.height, props.group]);
  useEffect(() => {
    const { current } = plot;
    if (!current) return;
    current.setData(data);
    if (current.cursor.left != null && current.cursor.left >= 0) return;
    const drawn = requestAnimationFrame(() => showLast(current));
    return () => cancelAnimationFrame(drawn);
  }, [data]);

  return (
    <figure class="chart">
      <figcaption>{props.title}</figcaption>
      <div ref={box} role="img" aria-label={summary(props)} />
    </figure>
  );
}

/** The legend has the last values while no pointer is there. */
function showLast(plot: uPlot): void {
  plot.setLegend({ idx: plot.data[0].length - 1 });
}

function dataOf(timesMs: readonly number[], series: readonly Series[]): uPlot.AlignedData {
  return [timesMs.map((each) => each / 1000), ...series.map((each) => [...each.values])];
}

/** What a person who does not see the lines should know: the last values and the largest. */
export function summary(props: Pick<Props, "title" | "series" | "format">): string {
  const parts = props.series.map(({ label, values }) => {
    const known = values.filter((value): value is number => value !== null);
    if (!known.length) return `${label}: not known`;
    return `${label}: now ${props.format(values.at(-1) ?? null)}, at most ${props.format(Math.max(...known))}`;
  });
  return `${props.title}. ${parts.join("; ")}`;
}

function optionsOf(props: Props, element: HTMLElement, marks: () => readonly Mark[]): uPlot.Options {
  const colour = colours(element);
  const axis = { stroke: colour("dim"), grid: { stroke: colour("grid"), width: 1 }, ticks: { show: false }, font: "12px system-ui" };
  return {
    width: element.clientWidth || 300,
    height: props.height ?? 180,
    series: [
      { value: (_, seconds) => (seconds == null ? "–" : clock(seconds, true)) },
      ...props.series.map((each, at) => ({
        label: each.label,
        stroke: colour(`replica-${(at % COLOURS) + 1}`),
        width: 1.75,
        ...(at % 2 ? { dash: [6, 3] } : {}),
        points: { show: false },
        spanGaps: false,
        value: (_: uPlot, value: number | null) => props.format(value),
      })),
    ],
    axes: [{ ...axis, size: 34, values: (_, values, _at, _space, step) => values.map((value) => clock(value, step < MINUTE_S)) }, { ...axis, size: 72, incrs: props.isBytes ? BINARY : DECIMAL, values: (_, values) => values.map((value) => props.format(value)) }],
    scales: { y: { range: (_, low, high) => [Math.min(low ?? 0, 0), Math.max(high ?? 0, 1) * 1.05] } },
    legend: { live: true },
    cursor: { sync: { key: props.group ?? props.title }, drag: { x: false, y: false } },
    hooks: { draw: [(plot) => drawMarks(plot, marks(), colour("out"))] },
  };
}

function clock(seconds: number, withSeconds: boolean): string {
  const text = new Date(seconds * 1000).toTimeString().slice(0, 8);
  return withSeconds ? text : text.slice(0, 5);
}

/** Elections: a line at their time. */
function drawMarks(plot: uPlot, marks: readonly Mark[], colour: string): void {
  const { ctx, bbox } = plot;
  ctx.save();
  ctx.strokeStyle = ctx.fillStyle = colour;
  ctx.lineWidth = devicePixelRatio;
  for (const mark of marks) {
    const x = Math.round(plot.valToPos(mark.timeMs / 1000, "x", true));
    if (x < bbox.left || x > bbox.left + bbox.width) continue;
    ctx.beginPath();
    ctx.setLineDash([4 * devicePixelRatio, 3 * devicePixelRatio]);
    ctx.moveTo(x, bbox.top);
    ctx.lineTo(x, bbox.top + bbox.height);
    ctx.stroke();
    const isLeft = x + ctx.measureText(mark.label).width + 8 > bbox.left + bbox.width;
    ctx.textAlign = isLeft ? "right" : "left";
    ctx.fillText(mark.label, x + (isLeft ? -4 : 4), bbox.top + 6 * devicePixelRatio);
  }
  ctx.restore();
}

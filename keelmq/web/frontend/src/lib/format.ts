/** Numbers and times as an operator reads them. Unknown is a dash. */

export const UNKNOWN = "–";

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"] as const;

export function count(value: number | null | undefined): string {
  return value == null ? UNKNOWN : Math.round(value).toLocaleString("en-US");
}

/** A rate: small ones keep a digit. */
export function rate(value: number | null | undefined): string {
  if (value == null) return UNKNOWN;
  return value !== 0 && Math.abs(value) < 10 ? value.toFixed(1) : count(value);
}

export function bytes(value: number | null | undefined): string {
  if (value == null) return UNKNOWN;
  let scaled = Math.abs(value);
  let unit = 0;
  while (scaled >= 1024 && unit < UNITS.length - 1) {
    scaled /= 1024;
    unit += 1;
  }
  const digits = unit === 0 || scaled >= 100 ? 0 : 1;
  return `${value < 0 ? "−" : ""}${scaled.toFixed(digits)} ${UNITS[unit]}`;
}

export function duration(ms: number | null | undefined): string {
  if (ms == null) return UNKNOWN;
  if (ms < 1000) return `${Math.round(ms)} ms`;
  const seconds = ms / 1000;
  if (seconds < 60) return `${seconds < 10 ? seconds.toFixed(1) : Math.round(seconds)} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return `${minutes} min ${Math.floor(seconds % 60)} s`;
  const hours = Math.floor(minutes / 60);
  if (hours < 48) return `${hours} h ${minutes % 60} min`;
  return `${Math.floor(hours / 24)} d ${hours % 24} h`;
}

export function percent(share: number | null | undefined): string {
  return share == null ? UNKNOWN : `${Math.round(share * 100)} %`;
}

/** 2026-11-24 02:18:02 in the browser's time zone; with the date left out if it is today. */
export function time(ms: number | null | undefined, now: number = Date.now()): string {
  if (ms == null || ms <= 0) return UNKNOWN;
  const at = new Date(ms);
  const clock = [at.getHours(), at.getMinutes(), at.getSeconds()].map(two).join(":");
  if (new Date(now).toDateString() === at.toDateString()) return clock;
  return `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())} ${clock}`;
}

export function isoTime(ms: number): string {
  return new Date(ms).toISOString();
}

export function plural(value: number, noun: string): string {
  return `${count(value)} ${noun}${value === 1 ? "" : "s"}`;
}

function two(value: number): string {
  return String(value).padStart(2, "0");
}

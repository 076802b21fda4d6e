/** Numbers of a group's history. Pure. */

type Values = readonly (number | null)[];

/** The times at which a value is another than the known one before. */
export function changesOf(timesMs: readonly number[], values: Values): number[] {
  return steps(timesMs, values).map((each) => each.timeMs).reverse();
}

export interface Change {
  timeMs: number;
  before: number;
  after: number;
}

/** As changesOf(), with the values; newest first. */
export function steps(timesMs: readonly number[], values: Values): Change[] {
  const found: Change[] = [];
  let before: number | null = null;
  for (const [at, after] of values.entries()) {
    const timeMs = timesMs[at];
    if (after === null || timeMs === undefined) continue;
    if (before !== null && after !== before) found.push({ timeMs, before, after });
    before = after;
  }
  return found.reverse();
}

/** The growth between adjacent samples; null where one is unknown, or the value fell (a truncated log), and at the end,
 * where the step is not over yet. */
export function perSecond(timesMs: readonly number[], values: Values): (number | null)[] {
  return timesMs.map((timeMs, at) => {
    const [value, before, beforeMs] = [values[at], values[at - 1], timesMs[at - 1]];
    if (at === timesMs.length - 1 || value == null || before == null || beforeMs === undefined || value < before) return null;
    return ((value - before) * 1000) / (timeMs - beforeMs);
  });
}

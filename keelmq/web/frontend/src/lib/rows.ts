/** Sorting, filtering and the visible part of long tables. */

export type SortValue = string | number | boolean | null | undefined;

export interface Sort {
  key: string;
  isDown: boolean;
}

export function sortOf(text: string | null | undefined): Sort | null {
  if (!text) return null;
  return text.startsWith("-") ? { key: text.slice(1), isDown: true } : { key: text, isDown: false };
}

export function sortText(sort: Sort | null): string {
  return sort === null ? "" : `${sort.isDown ? "-" : ""}${sort.key}`;
}

const byName = new Intl.Collator("en", { numeric: true, sensitivity: "base" });

/** Stable. Unknown values are last, whichever way. broker-2 is before broker-10. */
export function sorted<Row>(rows: readonly Row[], value: (row: Row) => SortValue, isDown: boolean): Row[] {
  const sign = isDown ? -1 : 1;
  return rows
    .map((row, at) => ({ row, at, value: value(row) }))
    .sort((one, other) => {
      if (one.value == null || other.value == null) {
        return Number(one.value == null) - Number(other.value == null) || one.at - other.at;
      }
      return sign * compared(one.value, other.value) || one.at - other.at;
    })
    .map((each) => each.row);
}

function compared(one: NonNullable<SortValue>, other: NonNullable<SortValue>): number {
  if (typeof one === "string" || typeof other === "string") return byName.compare(String(one), String(other));
  return Number(one) - Number(other);
}

/** Rows whose text has every word, in any order. */
export function filtered<Row>(rows: readonly Row[], words: string, text: (row: Row) => string): readonly Row[] {
  const wanted = words.toLowerCase().split(/\s+/).filter(Boolean);
  if (!wanted.length) return rows;
  return rows.filter((row) => {
    const all = text(row).toLowerCase();
    return wanted.every((word) => all.includes(word));
  });
}

export interface Slice {
  from: number;
  to: number;
}

/** The rows to draw: what is visible and some above and below, so that a quick scroll shows no gap. */
export function visible(count: number, rowHeight: number, top: number, height: number, spare = 12): Slice {
  const first = Math.floor(top / rowHeight) - spare;
  const last = Math.ceil((top + height) / rowHeight) + spare;
  return { from: Math.max(Math.min(first, count - 1), 0), to: Math.min(Math.max(last, 0), count) };
}

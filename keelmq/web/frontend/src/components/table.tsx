/** A table that sorts, filters, and draws only the visible rows of a long list.
 *
 * Keys, with the focus in a row: up and down, Page Up and Page Down, Home and End move between rows; Enter opens
 * what is focused. The focus goes to the first link or button of a row.
 */

import type { ComponentChildren } from "preact";
import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import { count as countText } from "../lib/format";
import { filtered, sorted, sortOf, sortText, visible, type Sort, type SortValue } from "../lib/rows";
import { route, setQuery } from "../router";
import { useStore } from "../lib/store";

export interface Column<Row> {
  key: string;
  title: string;
  /** The title is for screen readers only: what is in the cells speaks for itself. */
  isTitleHidden?: boolean;
  cell: (row: Row) => ComponentChildren;
  /** What the column is sorted by; without it, it is not sortable. */
  sort?: (row: Row) => SortValue;
  /** Numbers: aligned at the right, and the largest first at the first click. */
  isNumber?: boolean;
  /** Not shown on a phone. */
  isWide?: boolean;
  /** A CSS width, such as "12rem" or "30%". */
  width?: string;
  hint?: string;
}

interface Props<Row> {
  caption: string;
  rows: readonly Row[];
  columns: readonly Column<Row>[];
  rowKey: (row: Row) => string;
  /** What the filter searches; without it, there is no filter. */
  text?: (row: Row) => string;
  filterLabel?: string;
  /** Such as "name" or "-lag"; without it, rows keep their order. */
  sort?: string;
  /** In the address; two tables of one page have different names. */
  name?: string;
  empty?: ComponentChildren;
  rowClass?: (row: Row) => string;
  tools?: ComponentChildren;
}

const VIRTUAL_FROM = 120;
const ROW_HEIGHT = 37;

export function Table<Row>(props: Props<Row>) {
  const { query } = useStore(route);
  const name = props.name ?? "t";
  const words = query.get(`${name}.q`) ?? "";
  const sort = sortOf(query.get(`${name}.sort`) ?? props.sort);
  const rows = useMemo(() => {
    const found = props.text ? filtered(props.rows, words, props.text) : props.rows;
    const by = props.columns.find((column) => column.key === sort?.key)?.sort;
    return sort && by ? sorted(found, by, sort.isDown) : found;
  }, [props.rows, props.columns, words, sortText(sort)]);

  const onSort = (column: Column<Row>): void => {
    const isDown = sort?.key === column.key ? !sort.isDown : Boolean(column.isNumber);
    setQuery({ [`${name}.sort`]: sortText({ key: column.key, isDown }) });
  };
  return (
    <div class="table">
      {(props.text || props.tools) && (
        <div class="table-tools">
          {props.text && (
            <input
              type="search"
              placeholder={props.filterLabel ?? "Filter"}
              aria-label={`${props.filterLabel ?? "Filter"}: ${props.caption}`}
              value={words}
              onInput={(event) => setQuery({ [`${name}.q`]: event.currentTarget.value })}
            />
          )}
          {props.tools}
          <span class="found" role="status">
            {rows.length === props.rows.length ? countText(rows.length) : `${countText(rows.length)} of ${countText(props.rows.length)}`}
          </span>
        </div>
      )}
      <Body {...props} rows={rows} total={props.rows.length} order={sort} onSort={onSort} />
    </div>
  );
}

type BodyProps<Row> = Props<Row> & { total: number; order: Sort | null; onSort: (column: Column<Row>) => void };

function Body<Row>(props: BodyProps<Row>) {
  const { rows, columns } = props;
  const isVirtual = rows.length > VIRTUAL_FROM;
  const box = useRef<HTMLDivElement>(null);
  const [view, setView] = useState({ top: 0, height: 600 });
  const wanted = useRef<number | null>(null);
  const slice = isVirtual ? visible(rows.length, ROW_HEIGHT, view.top, view.height) : { from: 0, to: rows.length };

  const measure = (): void => {
    const element = box.current;
    if (element) setView({ top: element.scrollTop, height: element.clientHeight });
  };
  useEffect(measure, [isVirtual]);
  useLayoutEffect(() => {
    if (wanted.current !== null && focusRow(box.current, wanted.current)) wanted.current = null;
  });

  const onKeyDown = (event: KeyboardEvent): void => {
    const target = event.target as HTMLElement;
    const row = target.closest<HTMLElement>("tr[data-row]");
    const to = row && nextRow(event.key, Number(row.dataset["row"]), rows.length, view.height);
    if (to == null || target.matches("input, select, textarea")) return;
    event.preventDefault();
    if (focusRow(box.current, to)) return;
    wanted.current = to;
    if (box.current) box.current.scrollTop = Math.max(to * ROW_HEIGHT - view.height / 2, 0);
    measure();
  };
  if (!rows.length) return <div class="empty">{props.total ? "Nothing matches the filter." : (props.empty ?? "Nothing here.")}</div>;
  return (
    <div
      class={isVirtual ? "scroll virtual" : "scroll"}
      ref={box}
      role="region"
      aria-label={`${props.caption}: rows`}
      tabIndex={0}
      onScroll={isVirtual ? measure : undefined}
      onKeyDown={onKeyDown}
    >
      <table aria-rowcount={rows.length + 1}>
        <caption>{props.caption}</caption>
        <thead>
          <tr aria-rowindex={1}>
            {columns.map((column) => (
              <Header key={column.key} column={column} order={props.order} onSort={props.onSort} />
            ))}
          </tr>
        </thead>
        <tbody>
          <Space height={slice.from * ROW_HEIGHT} columns={columns.length} />
          {rows.slice(slice.from, slice.to).map((row, offset) => (
            <tr
              key={props.rowKey(row)}
              class={props.rowClass?.(row)}
              data-row={slice.from + offset}
              aria-rowindex={slice.from + offset + 2}
            >
              {columns.map((column) => (
                <td key={column.key} class={cellClass(column)}>{column.cell(row)}</td>
              ))}
            </tr>
          ))}
          <Space height={(rows.length - slice.to) * ROW_HEIGHT} columns={columns.length} />
        </tbody>
      </table>
    </div>
  );
}

function Header<Row>(props: { column: Column<Row>; order: Sort | null; onSort: (column: Column<Row>) => void }) {
  const { column, order } = props;
  const state = order?.key === column.key ? (order.isDown ? "descending" : "ascending") : undefined;
  return (
    <th scope="col" class={cellClass(column)} aria-sort={state} style={{ width: column.width }} title={column.hint}>
      {column.sort ? (
        <button type="button" onClick={() => props.onSort(column)}>
          {column.title}
          <span aria-hidden="true">{state === undefined ? "" : state === "ascending" ? " ▲" : " ▼"}</span>
        </button>
      ) : (
        <span class={column.isTitleHidden ? "hidden" : undefined}>{column.title}</span>
      )}
    </th>
  );
}

function cellClass<Row>(column: Column<Row>): string {
  return [column.isNumber && "number", column.isWide && "wide"].filter(Boolean).join(" ");
}

function Space({ height, columns }: { height: number; columns: number }) {
  if (height <= 0) return null;
  return (
    <tr aria-hidden="true" class="space">
      <td colSpan={columns} style={{ height: `${height}px` }} />
    </tr>
  );
}

export function nextRow(key: string, row: number, count: number, height: number): number | null {
  const page = Math.max(Math.floor(height / ROW_HEIGHT) - 1, 1);
  const moves: Readonly<Record<string, number>> = {
    ArrowDown: row + 1,
    ArrowUp: row - 1,
    PageDown: row + page,
    PageUp: row - page,
    Home: 0,
    End: count - 1,
  };
  const to = moves[key];
  return to === undefined ? null : Math.min(Math.max(to, 0), count - 1);
}

function focusRow(box: HTMLElement | null, row: number): boolean {
  const found = box?.querySelector<HTMLElement>(`tr[data-row="${row}"] :is(a, button)`);
  found?.focus();
  return found != null;
}

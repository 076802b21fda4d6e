/** Parts that the pages about data share: problems of servers, a search field, pages of a long list. */

import { useEffect, useState } from "preact/hooks";
import type { ServerProblem } from "../pages/data_types";
import { count, plural } from "../lib/format";
import { route, setQuery } from "../router";
import { useStore } from "../lib/store";
import { Note } from "./basic";

/** Servers without an answer; the rest of the page is still right. */
export function Silent({ problems, notAsked = 0 }: { problems: readonly ServerProblem[]; notAsked?: number }) {
  if (!problems.length && !notAsked) return null;
  return (
    <Note tone="warning">
      {problems.length > 0 && <>Without the answer of {plural(problems.length, "server")}: </>}
      {problems.slice(0, 8).map((each) => (
        <span key={each.server}><code>{each.server}</code> {each.problem}; </span>
      ))}
      {problems.length > 8 && <>and {problems.length - 8} more. </>}
      {notAsked > 0 && <>{plural(notAsked, "broker")} not asked: there are too many for one page.</>}
    </Note>
  );
}

const WAIT_MS = 250;

/** Changes a value of the address when its user pauses. */
export function SearchField({ name, label }: { name: string; label: string }) {
  const { query } = useStore(route);
  const [text, setText] = useState(query.get(name) ?? "");
  useEffect(() => {
    if (text === (query.get(name) ?? "")) return;
    const timer = setTimeout(() => setQuery({ [name]: text || undefined, offset: undefined }), WAIT_MS);
    return () => clearTimeout(timer);
  }, [text]);
  return <input type="search" placeholder={label} aria-label={label} value={text} onInput={(event) => setText(event.currentTarget.value)} />;
}

export const PAGE_ROWS = 100;

export function usePageOffset(): number {
  const { query } = useStore(route);
  return Math.max(Number.parseInt(query.get("offset") ?? "0", 10) || 0, 0);
}

/** Where a page of a list is, and the way to the next. */
export function Pager({ found, total, shown }: { found: number; total: number; shown: number }) {
  const offset = usePageOffset();
  const go = (to: number): void => setQuery({ offset: to > 0 ? String(to) : undefined });
  const range = shown ? `${count(offset + 1)} to ${count(offset + shown)} of ${count(found)}` : `none of ${count(found)}`;
  return (
    <nav class="actions" aria-label="Parts of the list">
      <span class="dim" role="status">{range}{found === total ? "" : `; ${count(total)} in all`}</span>
      <button type="button" disabled={offset <= 0} onClick={() => go(offset - PAGE_ROWS)}>Back</button>
      <button type="button" disabled={offset + shown >= found} onClick={() => go(offset + PAGE_ROWS)}>Next</button>
    </nav>
  );
}

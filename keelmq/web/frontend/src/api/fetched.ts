/** A hook for what is asked once, or again every period. */

import { useCallback, useEffect, useState } from "preact/hooks";
import { errorText, get, type Query } from "./client";

export interface Fetched<Answer> {
  value: Answer | null;
  /** Why the last request failed; value is then the answer before. */
  error: string;
  isLoading: boolean;
  takenAt: number;
  again: () => void;
}

/** path null: nothing is asked. everyMs 0: once. A request ends with its component. later: more of the query, as it
 * is at the time of each request, such as `from`. */
export function useGet<Answer>(path: string | null, query: Query = {}, everyMs = 0, later?: () => Query): Fetched<Answer> {
  const key = JSON.stringify([path, query]);
  const [state, setState] = useState({ key, value: null as Answer | null, error: "", isLoading: true, takenAt: 0 });
  const [round, setRound] = useState(0);
  useEffect(() => {
    if (path === null) return;
    const stop = new AbortController();
    let timer: ReturnType<typeof setTimeout> | undefined;
    const ask = async (): Promise<void> => {
      try {
        const value = await get<Answer>(path, { ...query, ...later?.() }, stop.signal);
        setState({ key, value, error: "", isLoading: false, takenAt: Date.now() });
      } catch (error) {
        if (stop.signal.aborted) return;
        setState((was) => {
          const kept = was.key === key ? was : { ...was, key, value: null, takenAt: 0 };
          return { ...kept, error: errorText(error), isLoading: false };
        });
      }
      if (everyMs && !stop.signal.aborted) timer = setTimeout(() => void ask(), everyMs);
    };
    void ask();
    return () => {
      stop.abort();
      clearTimeout(timer);
    };
  }, [key, everyMs, round]);
  const again = useCallback(() => setRound((times) => times + 1), []);
  if (state.key !== key) return { value: null, error: "", isLoading: path !== null, takenAt: 0, again };
  return { ...state, again };
}

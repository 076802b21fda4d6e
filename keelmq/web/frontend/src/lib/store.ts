/** A value that components watch. */

import { useEffect, useState } from "preact/hooks";

export class Store<Value> {
  private readonly watchers = new Set<() => void>();

  constructor(private value: Value) {}

  get(): Value {
    return this.value;
  }

  set(value: Value): void {
    if (Object.is(value, this.value)) return;
    this.value = value;
    for (const tell of [...this.watchers]) tell();
  }

  update(change: (value: Value) => Value): void {
    this.set(change(this.value));
  }

  watch(tell: () => void): () => void {
    this.watchers.add(tell);
    return () => this.watchers.delete(tell);
  }
}

export function useStore<Value>(store: Store<Value>): Value {
  const [value, setValue] = useState(() => store.get());
  useEffect(() => {
    const tell = (): void => setValue(() => store.get());
    tell(); // it may have changed between the first drawing and now
    return store.watch(tell);
  }, [store]);
  return value;
}

/** Now, again every everyMs; for ages. One timer for all components of a period. */
const clocks = new Map<number, Store<number>>();

export function useNow(everyMs = 1000): number {
  let clock = clocks.get(everyMs);
  if (clock === undefined) {
    const made = new Store(Date.now());
    setInterval(() => made.set(Date.now()), everyMs);
    clocks.set(everyMs, made);
    clock = made;
  }
  return useStore(clock);
}

/** The header of every page: the mark, what the page shows, and the choice of colours. */

import type { ComponentChildren } from "preact";
import { useStore } from "../lib/store";
import { setTheme, theme, THEMES } from "../theme";

interface Props {
  /** Where the mark leads; without it the mark is no link. */
  home?: string | undefined;
  name?: string;
  /** Beside the choice of colours. */
  aside?: ComponentChildren;
  children?: ComponentChildren;
}

export function Top({ home, name, aside, children }: Props) {
  const chosen = useStore(theme);
  const mark = (
    <svg viewBox="0 0 32 32" aria-hidden="true">
      <rect width="32" height="32" rx="8" fill="#005a9c" />
      <path d="M15 5v8M15 5l7 7h-7" fill="none" stroke="#9ad4f5" stroke-width="2" stroke-linejoin="round" />
      <path d="M5 15h22l-4 6H9z" fill="#fff" />
      <path d="M14 21h4v6h-4z" fill="#fff" />
    </svg>
  );
  return (
    <header class="top">
      {home ? <a class="brand" href={home} aria-label="KeelMQ: overview">{mark}{name && <span>{name}</span>}</a> : <span class="brand">{mark}</span>}
      {children}
      <span class="who">
        {aside}
        <select aria-label="Colours" value={chosen} onChange={(event) => setTheme(event.currentTarget.value as (typeof THEMES)[number])}>
          <option value="system">Auto</option>
          <option value="light">Light</option>
          <option value="dark">Dark</option>
        </select>
      </span>
    </header>
  );
}

/** Light, dark, or as the system says; kept in this browser. */

import { Store } from "./lib/store";

export const THEMES = ["system", "light", "dark"] as const;
export type Theme = (typeof THEMES)[number];
const KEY = "keelmq.theme";

function kept(): Theme {
  try {
    const value = localStorage.getItem(KEY);
    return THEMES.find((each) => each === value) ?? "system";
  } catch {
    return "system"; // storage is switched off
  }
}

export const theme = new Store<Theme>("system");
/** Counts changes of what the page looks like: charts draw on a canvas, and must be told. */
export const look = new Store(0);

export function setTheme(value: Theme): void {
  if (value === "system") delete document.documentElement.dataset["theme"];
  else document.documentElement.dataset["theme"] = value;
  try {
    localStorage.setItem(KEY, value);
  } catch {
    // it lasts until the page is closed
  }
  theme.set(value);
  look.update((times) => times + 1);
}

export function startTheme(): void {
  setTheme(kept());
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => look.update((times) => times + 1));
}

/** Returns a function that computes a CSS variable of an element: canvases and SVG attributes know no variables. */
export function colours(element: HTMLElement): (name: string) => string {
  const probe = document.createElement("span");
  return (name) => {
    element.append(probe);
    probe.style.color = `var(--${name})`;
    const found = getComputedStyle(probe).color;
    probe.remove();
    return found;
  };
}

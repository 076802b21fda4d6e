/** Routes behind "#": #/groups/KeelCluster/broker-a?tab=settings. */

import { Store } from "./lib/store";

export interface Route {
  path: string;
  query: URLSearchParams;
}

export type Parameters = Readonly<Record<string, string>>;

export function routeOf(hash: string): Route {
  const text = hash.replace(/^#/, "") || "/";
  const cut = text.indexOf("?");
  const path = cut < 0 ? text : text.slice(0, cut);
  return { path: path.startsWith("/") ? path : `/${path}`, query: new URLSearchParams(cut < 0 ? "" : text.slice(cut + 1)) };
}

/** Parameters of "/groups/:cluster/:name" in a path, or null if the path is another. */
export function matched(pattern: string, path: string): Parameters | null {
  const wanted = pattern.split("/");
  const given = path.split("/");
  if (wanted.length !== given.length) return null;
  const found: Record<string, string> = {};
  for (const [at, part] of wanted.entries()) {
    const value = given[at] ?? "";
    if (part.startsWith(":")) {
      try {
        found[part.slice(1)] = decodeURIComponent(value);
      } catch {
        return null; // somebody typed a lone %
      }
    } else if (part !== value) {
      return null;
    }
  }
  return found;
}

/** An href: link("/groups", cluster, name). Names are escaped; undefined and empty query values are left out. */
export function link(base: string, ...names: (string | number)[]): string {
  return `#${[base, ...names.map((name) => encodeURIComponent(String(name)))].join("/")}`;
}

export function linkWith(base: string, query: Readonly<Record<string, string | undefined>>): string {
  const kept = Object.entries(query).filter((pair): pair is [string, string] => Boolean(pair[1]));
  const text = new URLSearchParams(kept).toString();
  return `#${base}${text ? `?${text}` : ""}`;
}

export const route = new Store<Route>(routeOf(typeof location === "undefined" ? "" : location.hash));

export function startRouter(): void {
  addEventListener("hashchange", () => {
    // Page reads it: a new page is read from its heading on, the first one from the top of the document.
    document.body.dataset["moved"] = "1";
    route.set(routeOf(location.hash));
  });
}

export function go(href: string): void {
  location.hash = href;
}

/** Changes the query of this page without a new entry in the history (filters, tabs). */
export function setQuery(changes: Readonly<Record<string, string | undefined>>): void {
  const now = route.get();
  const values = Object.fromEntries(now.query);
  const href = linkWith(now.path, { ...values, ...changes });
  history.replaceState(null, "", href);
  route.set(routeOf(href));
}

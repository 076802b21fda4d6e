/** A page: a pattern of addresses and what draws it. */

import type { FunctionComponent } from "preact";
import type { Parameters } from "../router";

export interface PageDefinition {
  /** Such as "/groups/:cluster/:name". */
  pattern: string;
  component: FunctionComponent<{ parameters: Parameters }>;
  /** In the menu, if it is there. */
  menu?: { title: string; section: "Cluster" | "Data" | "Access" };
  /** The pattern of the menu's entry that is marked on a page without one. */
  under?: string;
}

/** The pages about servers and groups. */

import { About } from "./about";
import { Containers } from "./containers";
import { Controllers } from "./controllers";
import { Elections } from "./elections";
import { Group } from "./group";
import { Groups } from "./groups";
import { Login } from "./login";
import { NameServers } from "./name_servers";
import { Overview } from "./overview";
import type { PageDefinition } from "./types";

export const clusterPages: readonly PageDefinition[] = [
  { pattern: "/", component: Overview, menu: { title: "Overview", section: "Cluster" } },
  { pattern: "/groups", component: Groups, menu: { title: "Groups", section: "Cluster" } },
  { pattern: "/groups/:cluster/:name", component: Group, under: "/groups" },
  { pattern: "/controllers", component: Controllers, menu: { title: "Controllers", section: "Cluster" } },
  { pattern: "/name-servers", component: NameServers, menu: { title: "Name servers", section: "Cluster" } },
  { pattern: "/elections", component: Elections, menu: { title: "Elections", section: "Cluster" } },
  { pattern: "/containers", component: Containers, menu: { title: "Containers", section: "Cluster" } },
  { pattern: "/login", component: Login },
  { pattern: "/about", component: About },
];

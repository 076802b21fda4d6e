/** The pages about topics, consumers, producers, messages, users. */

import { Audit } from "./audit";
import { Consumer } from "./consumer";
import { Consumers } from "./consumers";
import { DeadLetterGroups, DeadLetters } from "./dead_letters";
import { MessagePage, Trace } from "./message";
import { Messages } from "./messages";
import { Producers } from "./producers";
import { Topic } from "./topic";
import { Topics } from "./topics";
import type { PageDefinition } from "./types";
import { Users } from "./users";

export const dataPages: readonly PageDefinition[] = [
  { pattern: "/topics", component: Topics, menu: { title: "Topics", section: "Data" } },
  { pattern: "/topics/:name", component: Topic, under: "/topics" },
  { pattern: "/consumers", component: Consumers, menu: { title: "Consumers", section: "Data" } },
  { pattern: "/consumers/:name", component: Consumer, under: "/consumers" },
  { pattern: "/producers", component: Producers, menu: { title: "Producers", section: "Data" } },
  { pattern: "/messages", component: Messages, menu: { title: "Messages", section: "Data" } },
  { pattern: "/messages/:topic/:broker/:queue/:offset", component: MessagePage, under: "/messages" },
  { pattern: "/trace", component: Trace, under: "/messages" },
  { pattern: "/dead-letters", component: DeadLetterGroups, menu: { title: "Dead letters", section: "Data" } },
  { pattern: "/dead-letters/:group", component: DeadLetters, under: "/dead-letters" },
  { pattern: "/users", component: Users, menu: { title: "Users", section: "Access" } },
  { pattern: "/audit", component: Audit, menu: { title: "Audit", section: "Access" } },
];

/** The frame around all pages: header, menu, banner, and the page that the address asks for. */

import { useEffect, useState } from "preact/hooks";
import { live } from "./api/live";
import { session } from "./api/client";
import { logOut } from "./api/session";
import { Age, Badge, Page, VerdictBadge } from "./components/basic";
import { Top } from "./components/top";
import { duration } from "./lib/format";
import { useNow, useStore } from "./lib/store";
import { clusterPages } from "./pages/cluster";
import { dataPages } from "./pages/data";
import { Login } from "./pages/login";
import type { PageDefinition } from "./pages/types";
import { matched, route } from "./router";

const PAGES: readonly PageDefinition[] = [...clusterPages, ...dataPages];
const SECTIONS = ["Cluster", "Data", "Access"] as const;

export function App() {
  const { path } = useStore(route);
  const { loginRequired, user } = useStore(session);
  const mustLogIn = loginRequired && !user;
  const found = current(path);
  useEffect(() => scrollTo(0, 0), [path]);
  return (
    <>
      <a class="skip" href="#content" onClick={skip}>Skip to the content</a>
      <Header />
      <Banner />
      <div class="body">
        <Menu path={path} page={found?.page} />
        <main id="content" tabIndex={-1}>
          {mustLogIn ? <Login /> : found ? <found.page.component key={path} parameters={found.parameters} /> : <NotFound path={path} />}
        </main>
      </div>
    </>
  );
}

/** The address has the page behind "#", so the link of the skip link cannot be followed. */
function skip(event: Event): void {
  event.preventDefault();
  document.getElementById("content")?.focus();
}

function current(path: string) {
  for (const page of PAGES) {
    const parameters = matched(page.pattern, path);
    if (parameters) return { page, parameters };
  }
  return null;
}

function NotFound({ path }: { path: string }) {
  return (
    <Page title="No such page">
      <p>There is no page {path}. <a href="#/">Overview</a></p>
    </Page>
  );
}

function Header() {
  const { status, takenAt } = useStore(live);
  const { user, loginRequired, readOnly } = useStore(session);
  const clusters = [...new Set(status?.groups.map((group) => group.cluster) ?? [])];
  return (
    <Top
      home="#/"
      name="KeelMQ"
      aside={
        <>
          {readOnly && <Badge tone="info" title="This console carries out no action">read-only</Badge>}
          {!user && !loginRequired && <a href="#/login">Log in</a>}
          {user && (
            <>
              <span>{user}</span>
              <button type="button" onClick={() => void logOut()}>Log out</button>
            </>
          )}
        </>
      }
    >
      {status && (
        <span class="cluster">
          <span>{clusters.length > 2 ? `${clusters.length} clusters` : clusters.join(", ")}</span>
          <VerdictBadge verdict={status.verdict} />
          <Age at={takenAt} />
        </span>
      )}
    </Top>
  );
}

/** The picture is old, and the page says so before anybody trusts it. */
function Banner() {
  const { connection, lostAt, reason, status } = useStore(live);
  const now = useNow();
  const text =
    connection === "lost"
      ? `Disconnected for ${duration(now - lostAt)}: ${reason}. ${status ? "What is below is as it was then" : "Nothing is known yet"}; trying again.`
      : "";
  return <div role="status" class={text ? "banner" : "banner none"}>{text}</div>;
}

function Menu({ path, page }: { path: string; page: PageDefinition | undefined }) {
  const [isOpen, setOpen] = useState(false);
  useEffect(() => setOpen(false), [path]);
  const here = page?.under ?? page?.pattern;
  return (
    <nav class={isOpen ? "menu open" : "menu"} aria-label="Pages">
      <button type="button" class="menu-button" aria-expanded={isOpen} onClick={() => setOpen(!isOpen)}>
        ☰ {page?.menu?.title ?? PAGES.find((each) => each.pattern === here)?.menu?.title ?? "Menu"}
      </button>
      <div class="menu-items">
        {SECTIONS.map((section) => {
          const entries = PAGES.filter((each) => each.menu?.section === section);
          if (!entries.length) return null;
          return (
            <div key={section}>
              <h2>{section}</h2>
              {entries.map((each) => (
                <a key={each.pattern} href={`#${each.pattern}`} aria-current={each.pattern === here ? "page" : undefined}>
                  {each.menu?.title}
                </a>
              ))}
            </div>
          );
        })}
        <div>
          <h2>More</h2>
          <a href="../dashboard">Fail-over analytics</a>
          <a href="../docs">HTTP API</a>
          <a href="#/about">About</a>
        </div>
      </div>
    </nav>
  );
}

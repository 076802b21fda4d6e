/** Draws with the newest picture, or says why there is none. */

import type { ComponentChildren } from "preact";
import { live } from "../api/live";
import type { ClusterStatus } from "../api/types";
import { useStore } from "../lib/store";
import { Loading, Note, Page } from "./basic";

export function WithStatus({ title, children }: { title: string; children: (status: ClusterStatus) => ComponentChildren }) {
  const { status, connection } = useStore(live);
  if (status) return <>{children(status)}</>;
  return (
    <Page title={title}>
      {connection === "lost" ? (
        <Note tone="failed">The server does not answer, so nothing is known about the cluster. <code>keelmq status -n ADDRESSES</code> asks it without this server.</Note>
      ) : (
        <Loading what="the cluster" />
      )}
    </Page>
  );
}

/** What this page is, and how old what it shows is. */

import { session } from "../api/client";
import { live } from "../api/live";
import { Age, Card, Command, KeyValue, Page } from "../components/basic";
import { duration } from "../lib/format";
import { useStore } from "../lib/store";

export function About() {
  const { status, takenAt, connection } = useStore(live);
  const { user, loginRequired, readOnly } = useStore(session);
  const servers = status?.nameServers.map((each) => each.address).join(";") ?? "ADDRESSES";
  return (
    <Page title="About" lead="The KeelMQ console asks the servers of a cluster as an operator would, and shows what they answer.">
      <Card title="This page">
        <KeyValue
          items={[
            ["Connection", connection],
            ["Age of the picture", <Age key="a" at={takenAt} />],
            ["Asking took", duration(status?.tookMs)],
            ["Brokers not asked", status ? String(status.brokersNotAsked) : "–"],
            ["User", user ?? (loginRequired ? "nobody" : "no log-in needed")],
            ["Actions", readOnly ? "none: read-only" : "with a preview each"],
          ]}
        />
      </Card>
      <Card title="In a terminal">
        <div class="lines">
          <Command line={`keelmq status -n ${quoted(servers)}`} />
          <Command line={`keelmq doctor -n ${quoted(servers)}`} />
        </div>
      </Card>
    </Page>
  );
}

function quoted(text: string): string {
  return text.includes(";") ? `'${text}'` : text;
}

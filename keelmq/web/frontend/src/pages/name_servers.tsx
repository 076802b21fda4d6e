/** Each name server's own view, and where they differ. */

import type { ClusterStatus, NameServerStatus } from "../api/types";
import { Badge, Card, Note, Page } from "../components/basic";
import { Problems } from "../components/problems";
import { Table, type Column } from "../components/table";
import { WithStatus } from "../components/with_status";
import { differs, groupLink } from "../lib/cluster";
import { count } from "../lib/format";

export function NameServers() {
  return <WithStatus title="Name servers">{(status) => <Known status={status} />}</WithStatus>;
}

function Known({ status }: { status: ClusterStatus }) {
  const { nameServers } = status;
  const problems = status.problems.filter((each) => each.check.startsWith("namesrv.") || each.check === "group.routes");
  const number = (key: "brokers" | "groups" | "topics", title: string): Column<NameServerStatus> => {
    const isDifferent = differs(nameServers.map((each) => each[key]));
    return { key, title, isNumber: true, sort: (each) => each[key], cell: (each) => <span class={isDifferent ? "differs" : undefined}>{isDifferent ? "≠ " : ""}{count(each[key])}</span> };
  };
  const columns: Column<NameServerStatus>[] = [
    { key: "state", title: "State", cell: (each) => <Badge tone={each.isUp ? "ok" : "failed"}>{each.isUp ? "up" : "silent"}</Badge>, sort: (each) => Number(each.isUp) },
    { key: "address", title: "Address", cell: (each) => <code>{each.address}</code>, sort: (each) => each.address },
    number("groups", "Groups"),
    number("brokers", "Brokers"),
    number("topics", "Topics"),
    { key: "problem", title: "Problem", cell: (each) => each.problem || "–" },
  ];
  const disagreeing = status.groups.filter((group) => group.disagreements.length);
  return (
    <Page title="Name servers" lead="Name servers do not know each other: brokers register with each of them. Clients may ask any of them.">
      {problems.length > 0 && <Card title="Problems"><Problems problems={problems} groups={status.groups} /></Card>}
      <section class="card">
        <Table caption="Name servers" rows={nameServers} columns={columns} rowKey={(each) => each.address} sort="address" />
      </section>
      <Card title="Disagreements">
        {disagreeing.length === 0 && <Note tone="ok">Name servers, controllers and brokers say the same about every group.</Note>}
        <ul class="disagreements">
          {disagreeing.map((group) => (
            <li key={groupLink(group)}>
              <a href={groupLink(group)}>{group.brokerName}</a>
              {group.disagreements.map((text) => <p key={text}>{text}</p>)}
            </li>
          ))}
        </ul>
      </Card>
    </Page>
  );
}

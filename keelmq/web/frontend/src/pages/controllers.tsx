/** The controllers: who leads, and how far each member has applied the log of raft. */

import type { ClusterStatus, ControllerStatus } from "../api/types";
import { Badge, Card, Page } from "../components/basic";
import { Problems } from "../components/problems";
import { Table, type Column } from "../components/table";
import { WithStatus } from "../components/with_status";
import { count, plural } from "../lib/format";

export function Controllers() {
  return <WithStatus title="Controllers">{(status) => <Known status={status} />}</WithStatus>;
}

function Known({ status }: { status: ClusterStatus }) {
  const { controllers } = status;
  const committed = Math.max(...controllers.map((each) => each.commitIndex ?? 0), 0);
  const answering = controllers.filter((each) => each.role !== "silent").length;
  const majority = Math.floor(controllers.length / 2) + 1;
  const problems = status.problems.filter((each) => each.check.startsWith("controller."));
  const columns: Column<ControllerStatus>[] = [
    { key: "member", title: "Member", cell: (each) => each.member || "–", sort: (each) => each.member },
    { key: "role", title: "Role", cell: (each) => <Badge tone={each.role === "silent" ? "failed" : each.role === "leader" ? "info" : "ok"}>{each.role}</Badge>, sort: (each) => each.role },
    { key: "address", title: "Address", cell: (each) => <code>{each.address}</code>, sort: (each) => each.address },
    { key: "term", title: "Term", cell: (each) => count(each.term), sort: (each) => each.term, isNumber: true },
    { key: "commit", title: "Commit index", cell: (each) => count(each.commitIndex), sort: (each) => each.commitIndex, isNumber: true, isWide: true },
    { key: "applied", title: "Applied", cell: (each) => count(each.lastApplied), sort: (each) => each.lastApplied, isNumber: true, isWide: true },
    { key: "behind", title: "Behind", cell: (each) => (each.lastApplied === null ? "–" : count(Math.max(committed - each.lastApplied, 0))), isNumber: true, hint: "entries of the log that it has not applied yet" },
    { key: "problem", title: "Problem", cell: (each) => each.problem || "–" },
  ];
  const lead = controllers.length
    ? `${answering} of ${plural(controllers.length, "member")} answer; ${majority} must, or no master can be replaced.`
    : "This cluster has no controllers: the masters of its groups are fixed.";
  return (
    <Page title="Controllers" lead={lead}>
      {problems.length > 0 && <Card title="Problems"><Problems problems={problems} groups={status.groups} /></Card>}
      <section class="card">
        <Table caption="Controllers" rows={controllers} columns={columns} rowKey={(each) => each.address} sort="member" empty="No controller is known." />
      </section>
    </Page>
  );
}

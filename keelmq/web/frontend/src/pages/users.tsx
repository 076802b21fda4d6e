/** Users and access control lists of the brokers. Passwords are sent, never shown. */

import { useState } from "preact/hooks";
import { useGet } from "../api/fetched";
import { session } from "../api/client";
import { useAction } from "../components/action";
import { Badge, Card, ErrorNote, Field, Loading, Page, Select } from "../components/basic";
import { SearchField, Silent } from "../components/data";
import { FormThenAction } from "../components/form";
import { Table, type Column } from "../components/table";
import { useStore } from "../lib/store";
import { route } from "../router";
import type { AccessView } from "./data_types";

type UserRow = AccessView["users"][number];
type AclRow = AccessView["acls"][number];
type Open = { kind: "user"; user: UserRow | null } | { kind: "acl"; subject: string } | null;

export function Users() {
  const { query } = useStore(route);
  const { readOnly } = useStore(session);
  const answer = useGet<AccessView>("users", { q: query.get("q") });
  const action = useAction();
  const [open, setOpen] = useState<Open>(null);
  const [wanted, setCluster] = useState("");
  const view = answer.value;
  const cluster = wanted || view?.clusters[0] || "";
  const start = (title: string, name: string, parameters: Record<string, unknown>): void =>
    action.start({ title, verb: "Delete", action: { name, parameters: { cluster, ...parameters } }, onDone: answer.again });
  const where = (row: { isMissingAt: string[]; differs: boolean }) => (
    <>
      {row.isMissingAt.length > 0 && <Badge tone="warning">not at {row.isMissingAt.join(", ")}</Badge>}
      {row.differs && <Badge tone="warning">brokers differ</Badge>}
      {!row.isMissingAt.length && !row.differs && <Badge tone="ok">the same at all</Badge>}
    </>
  );
  const users: readonly Column<UserRow>[] = [
    { key: "name", title: "User", cell: (row) => row.username, sort: (row) => row.username },
    { key: "type", title: "Type", cell: (row) => <Badge tone={row.userType === "Super" ? "info" : "plain"}>{row.userType || "–"}</Badge>, sort: (row) => row.userType },
    { key: "status", title: "Status", cell: (row) => <Badge tone={row.userStatus === "disable" ? "warning" : "ok"}>{row.userStatus || "–"}</Badge>, sort: (row) => row.userStatus },
    { key: "where", title: "Brokers", cell: where, isWide: true },
    {
      key: "do",
      title: "",
      cell: (row) => (
        <span class="actions">
          <button type="button" disabled={readOnly} onClick={() => setOpen({ kind: "user", user: row })}>Change …</button>
          <button type="button" disabled={readOnly} onClick={() => setOpen({ kind: "acl", subject: `User:${row.username}` })}>Grant …</button>
          <button type="button" disabled={readOnly} onClick={() => start(`Delete user ${row.username}`, "deleteUser", { username: row.username })}>Delete …</button>
        </span>
      ),
    },
  ];
  const acls: readonly Column<AclRow>[] = [
    { key: "subject", title: "Subject", cell: (row) => row.subject, sort: (row) => row.subject },
    {
      key: "entries",
      title: "May and may not",
      cell: (row) => (
        <ul class="effects">
          {row.policies.flatMap((policy) => (policy.entries ?? []).map((entry) => (
            <li key={`${policy.policyType} ${entry.resource}`}>
              <Badge tone={entry.decision === "Deny" ? "failed" : "ok"}>{entry.decision ?? "–"}</Badge>
              <code>{(entry.actions ?? []).join(", ")}</code> on <code>{entry.resource}</code>
              {entry.sourceIps?.length ? <> from <code>{entry.sourceIps.join(", ")}</code></> : null}
              {policy.policyType === "Default" && <span class="dim">default</span>}
              <button type="button" disabled={readOnly} onClick={() => start(`Delete ${entry.resource} from the ACL of ${row.subject}`, "deleteAcl", { subject: row.subject, resource: entry.resource })}>Delete …</button>
            </li>
          )))}
        </ul>
      ),
    },
    { key: "where", title: "Brokers", cell: where, isWide: true },
  ];
  return (
    <Page title="Users" lead="Who may do what at the brokers. Each broker group keeps its own; a change goes to every master of a cluster." actions={<button type="button" class="primary" disabled={readOnly || !cluster} onClick={() => setOpen({ kind: "user", user: null })}>Create a user …</button>}>
      <ErrorNote text={answer.error} again={answer.again} />
      {answer.isLoading && !view && <Loading what="users" />}
      {view && (
        <>
          <Silent problems={view.problems} notAsked={view.notAsked} />
          <Card title="Users">
            <div class="table-tools">
              <SearchField name="q" label="Part of a name" />
              {view.clusters.length > 1 && <Select label="Changes go to cluster" value={cluster} options={view.clusters.map((each) => [each, each] as const)} onValue={setCluster} />}
            </div>
            <Table caption="Users" name="u" rows={view.users} columns={users} rowKey={(row) => row.username} empty="No user: security is off, or nobody may list them." />
          </Card>
          <Card title="Access control lists"><Table caption="Access control lists" name="a" rows={view.acls} columns={acls} rowKey={(row) => row.subject} empty="No access control list." /></Card>
        </>
      )}
      {open?.kind === "user" && <UserDialog cluster={cluster} before={open.user} onClose={() => { setOpen(null); answer.again(); }} />}
      {open?.kind === "acl" && <AclDialog cluster={cluster} subject={open.subject} onClose={() => { setOpen(null); answer.again(); }} />}
      {action.dialog}
    </Page>
  );
}

const TYPES = [["Normal", "Normal: what its ACL allows"], ["Super", "Super: everything"]] as const;
const STATUSES = [["enable", "enabled"], ["disable", "disabled"]] as const;

function UserDialog({ cluster, before, onClose }: { cluster: string; before: UserRow | null; onClose: () => void }) {
  const [username, setUsername] = useState(before?.username ?? "");
  const [password, setPassword] = useState("");
  const [type, setType] = useState<string>(before?.userType || "Normal");
  const [status, setStatus] = useState<string>(before?.userStatus || "enable");
  const [isReady, setReady] = useState(false);
  const parameters = before
    ? { cluster, username, password: password || null, userType: type === before.userType ? null : type, userStatus: status === before.userStatus ? null : status }
    : { cluster, username, password, userType: type };
  const fields = (
    <>
      <Field label="Name" value={username} onValue={(text) => setUsername(text.trim())} input={{ disabled: before !== null, autocomplete: "off", spellcheck: false }} />
      <Field label={before ? "New password (empty: as it is)" : "Password"} value={password} onValue={setPassword} input={{ type: "password", autocomplete: "new-password" }} />
      <Select label="Type" value={type} options={TYPES} onValue={setType} />
      {before && <Select label="Status" value={status} options={STATUSES} onValue={setStatus} />}
    </>
  );
  return <FormThenAction title={before ? `Change user ${before.username}` : "Create a user"} verb={before ? "Change" : "Create"} name={before ? "updateUser" : "createUser"} parameters={parameters} fields={fields} isReady={isReady} setReady={setReady} isComplete={username !== "" && (before !== null || password !== "")} onClose={onClose} />;
}

const DECISIONS = [["Allow", "may"], ["Deny", "may not"]] as const;
const ACTIONS = ["Pub", "Sub", "Create", "Update", "Delete", "Get", "List", "All"] as const;

function AclDialog({ cluster, subject, onClose }: { cluster: string; subject: string; onClose: () => void }) {
  const [resources, setResources] = useState("Topic:");
  const [actions, setActions] = useState<readonly string[]>(["Pub", "Sub"]);
  const [decision, setDecision] = useState<string>("Allow");
  const [sources, setSources] = useState("");
  const [isReady, setReady] = useState(false);
  const list = (text: string): string[] => text.split(",").map((each) => each.trim()).filter(Boolean);
  const parameters = { cluster, subject, resources: list(resources), actions, decision, sourceIps: list(sources) };
  const fields = (
    <>
      <Select label={subject} value={decision} options={DECISIONS} onValue={setDecision} />
      <fieldset class="actions">
        {ACTIONS.map((each) => (
          <label key={each} class="check"><input type="checkbox" checked={actions.includes(each)} onChange={() => setActions(actions.includes(each) ? actions.filter((other) => other !== each) : [...actions, each])} /> {each}</label>
        ))}
      </fieldset>
      <Field label="Resources" hint="Such as Topic:orders, Topic:order*, Group:*, separated by commas" value={resources} onValue={setResources} input={{ spellcheck: false }} />
      <Field label="From these addresses only" hint="Addresses or CIDR blocks; empty: from everywhere" value={sources} onValue={setSources} input={{ spellcheck: false }} />
    </>
  );
  return <FormThenAction title={`Grant ${subject}`} verb="Grant" name="updateAcl" parameters={parameters} fields={fields} isReady={isReady} setReady={setReady} isComplete={parameters.resources.length > 0 && actions.length > 0} onClose={onClose} />;
}

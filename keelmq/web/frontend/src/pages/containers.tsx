/** Broker containers: their brokers, processes and quotas. */

import { useGet } from "../api/fetched";
import type { ContainerDetail, InnerBroker } from "../api/types";
import { Age, Badge, Card, Empty, ErrorNote, Loading, Note, Page, type Tone } from "../components/basic";
import { Table, type Column } from "../components/table";
import { groupLink } from "../lib/cluster";
import { bytes, count, duration, percent, plural } from "../lib/format";
import { route, setQuery } from "../router";
import { useStore } from "../lib/store";

const EVERY_MS = 5_000;

export function Containers() {
  const { query } = useStore(route);
  const address = query.get("address") ?? "";
  const { value, error, isLoading, takenAt, again } = useGet<{ containers: ContainerDetail[] }>("containers", { address }, EVERY_MS);
  const onSubmit = (event: Event): void => {
    event.preventDefault();
    const text = new FormData(event.currentTarget as HTMLFormElement).get("address");
    setQuery({ address: String(text ?? "").trim() });
  };
  return (
    <Page title="Containers" lead={<>Processes that hold several brokers. They are looked for at port 10811 of the cluster's machines. <Age at={takenAt} /></>}>
      <form class="card inline" onSubmit={onSubmit}>
        <label class="field">
          <span>A container at another port</span>
          <input name="address" defaultValue={address} placeholder="host:port" pattern="\S+:\d+" />
        </label>
        <button type="submit">Ask it</button>
      </form>
      <ErrorNote text={error} again={again} />
      {isLoading && <Loading what="the containers" />}
      {value && !value.containers.length && <section class="card"><Empty>No container was found.</Empty></section>}
      {value?.containers.map((each) => <Container key={each.address} container={each} />)}
    </Page>
  );
}

const TONES: Readonly<Record<string, Tone>> = { serving: "ok", starting: "info", quarantined: "failed" };

const COLUMNS: readonly Column<InnerBroker>[] = [
  { key: "state", title: "State", cell: (each) => <><Badge tone={TONES[each.state] ?? "plain"}>{each.state}</Badge>{each.reason && <small class="block bad-text">{each.reason}</small>}</>, sort: (each) => each.state },
  { key: "name", title: "Group", cell: (each) => <a href={groupLink({ cluster: each.brokerClusterName, brokerName: each.brokerName })}>{each.brokerName}</a>, sort: (each) => each.brokerName },
  { key: "id", title: "Id", cell: (each) => (each.brokerId < 0 ? "–" : each.brokerId), sort: (each) => each.brokerId, isNumber: true },
  { key: "role", title: "Role", cell: (each) => each.role, sort: (each) => each.role },
  { key: "address", title: "Address", cell: (each) => <code>{each.address || "–"}</code>, isWide: true },
  { key: "worker", title: "Process", cell: (each) => each.worker, sort: (each) => each.worker, isNumber: true, isWide: true },
  { key: "connections", title: "Connections", cell: (each) => count(each.connections), sort: (each) => each.connections, isNumber: true, isWide: true },
  { key: "store", title: "Store", cell: (each) => bytes(each.storeBytes), sort: (each) => each.storeBytes, isNumber: true },
  { key: "quota", title: "Of its quota", cell: (each) => (each.quotaBytes ? percent(each.storeBytes / each.quotaBytes) : "none"), sort: (each) => (each.quotaBytes ? each.storeBytes / each.quotaBytes : null), isNumber: true, isWide: true },
];

function Container({ container }: { container: ContainerDetail }) {
  const { status } = container;
  return (
    <Card title={`Container ${container.address}`} aside={status && plural(status.brokers.length, "broker")}>
      {status === null ? (
        <Note tone="failed">{container.problem || "It does not answer, or is no container of KeelMQ."}</Note>
      ) : (
        <>
          <Table caption={`Brokers of ${container.address}`} rows={status.brokers} columns={COLUMNS} rowKey={(each) => each.canonicalName} sort="name" name={`k${container.address}`} empty="It has no brokers." />
          <ul class="servers-list workers">
            {status.workers.map((each) => (
              <li key={each.number}>
                <Badge tone={each.isRunning ? "ok" : "failed"}>{each.isRunning ? "running" : "stopped"}</Badge>
                <span>process {each.number}, pid {each.pid}</span>
                <span class="dim">
                  {plural(each.restarts, "restart")}, CPU {duration(each.cpuMillis)}, {bytes(each.residentBytes)} {each.reason}
                </span>
              </li>
            ))}
          </ul>
        </>
      )}
    </Card>
  );
}

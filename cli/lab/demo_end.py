"""The end of the demo: its last output, and the files that stay on the disk."""

import shlex
import shutil
from pathlib import Path

from cli.lab.ack_log import Report
from cli.lab.cluster import Cluster

TELEMETRY = "telemetry"
ANALYTICS = "analytics"


def print_report(report: Report) -> None:
    """Prints what was sent, acknowledged, lost, damaged and duplicated, and the gaps of the fail-overs."""
    gaps = ", ".join(f"{gap_ms} ms" for gap_ms in report.gaps_ms) or "none"
    print(f"sent          {report.sent:,} messages, {report.retried:,} of them needed more than one attempt")
    print(f"acknowledged  {report.acked:,} ({report.unacknowledged:,} sends ended in an error)")
    print(f"lost          {report.lost:,} of the acknowledged ones")
    if report.lost_numbers:
        print(f"              numbers {', '.join(map(str, report.lost_numbers))}, ...")
    print(f"damaged       {report.damaged:,}")
    print(f"duplicated    {report.duplicated:,} (attempts whose answer was lost: at least once, never less)")
    print(f"gaps          {gaps} from SIGKILL to the first acknowledged send that was started after it")


def keep_telemetry_only(directory: Path, *also: str) -> None:
    """Deletes logs and messages; keeps the telemetry, which the report needs, and the files in `also`."""
    for path in directory.iterdir():
        if path.name in also:
            continue
        if not path.is_dir():
            path.unlink()
            continue
        for part in path.iterdir():
            if part.name == TELEMETRY:
                continue
            if part.is_dir():
                shutil.rmtree(part)
            else:
                part.unlink()


def command(program: str) -> str:
    """Returns how to start a program: with ./run in a checkout, by its name if installed."""
    run = Path(__file__).resolve().parents[2] / "run"
    return f"{shlex.quote(str(run))} {program}" if run.exists() else program


def print_report_command(directory: Path) -> None:
    """Prints the command that makes the HTML report from this directory."""
    print(f"report        {command('keelmq')} report {shlex.quote(str(directory))}")
    print("              draws lag, SyncStateSet and every fail-over; the first time it fetches 158 MB")


def print_commands(cluster: Cluster, *, topic: str, credentials: Path | None = None) -> None:
    """Prints commands to use the running cluster, to compute its dashboard and to stop it. credentials: the
    administrator's, if the cluster requires some."""
    run = command("mqadmin")
    namesrv, controllers = f"'{cluster.namesrv_addr}'", f"'{cluster.controller_addr}'"
    pids = " ".join(str(program.pid) for program in cluster.programs if program.is_running)
    print("\nThe cluster is still running. Use it:")
    if credentials is not None:
        print(f"  export KEELMQ_CREDENTIALS={shlex.quote(str(credentials))}")
    print(f"  {run} clusterList -n {namesrv}")
    print(f"  {run} getControllerMetaData -a {controllers}")
    print(f"  {run} getSyncStateSet -a {controllers} -b {cluster.broker_name}")
    print(f"  {run} getBrokerEpoch -n {namesrv} -b {cluster.broker_name}")
    print(f"  {run} topicRoute -n {namesrv} -t {topic}")
    print(f"  {run} sendMessage -n {namesrv} -t {topic} -p hello")
    print(f"  {run} consumeMessage -n {namesrv} -t {topic} -c 3")
    print(f"  {command('keelmq')} status -n {namesrv}")
    page = cluster.name_servers[0].http_address
    directory = shlex.quote(str(cluster.directory))
    scheme = "http" if credentials is None else "https"
    print(f"Its console: {scheme}://{page}/console/")
    print(f"Its fail-over analytics, {scheme}://{page}/dashboard, show what this has computed last:")
    print(f"  {command('keelmq')} analytics run --input {directory} --output {directory}/{ANALYTICS}")
    print("Stop it:")
    print(f"  kill {pids}; sleep 3; rm -r {shlex.quote(str(cluster.directory))}\n")

"""The engine that computes: where a Spark session comes from, and what each kind of engine lacks.

    embedded   Sail (the package pysail), a server of Spark Connect inside this process. No Java. The default
    spark      Spark on this machine or a cluster (--master), by spark-submit, or in a session that is there
    connect    a server of Spark Connect elsewhere (--remote sc://HOST:PORT)

All of them give a SparkSession with the same DataFrame API (analytics/queries). Their differences are checked
here before any work, and reported in one line: no Java, only the client of Spark, incompatible versions.

The embedded server listens on a port of 127.0.0.1 that the system chooses, without authentication, for as
long as the session lasts: every user who can log in to this machine can then run queries, and Python, as this
user. On a machine of several users that do not trust each other, give --engine spark."""

import importlib.util
import os
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final

import pyspark
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from analytics.engine.classic import (
    check_classic,
    classic_session,
    given_session,
    is_submitted,
    send_functions,
)
from analytics.engine.environment import environment
from analytics.engine.errors import engine_error
from analytics.engine.settings import COMMON, DEBUGGING, DRIVER_MEMORY, DRIVER_MEMORY_DEFAULT, memory_bytes
from analytics.errors import AnalyticsError
from analytics.queries.kept import ARROW, KEPT
from analytics.queries.reading import OF_URLS, PATHS

EMBEDDED, SPARK, CONNECT = "embedded", "spark", "connect"
ENGINES: Final = (EMBEDDED, SPARK, CONNECT)

LOOPBACK = "127.0.0.1"
CLIENTS_OF_SAIL = ((4, 0), (4, 2))
"""The oldest and the newest PySpark that the embedded engine supports; it refuses others only after work has
begun."""
SERVER_OLDEST = 4
"""Major version of Spark: applyInArrow and the functions of the queries are in Spark 4."""
FIRST_CONTACT_RETRIES, RETRIES = 4, 7
"""At once, then after 50 ms, four times as long each time, at most BACKOFF_MS_MAX: 4 s, and 80 s."""
BACKOFF_MS_MAX = 30_000
SESSION_TIMEOUT_S = 24 * 3600
"""Between two requests. Sail's default, 15 minutes, is shorter than compaction may take between two."""

NO_EMBEDDED = (
    "the embedded engine is not installed: pip install 'keelmq[analytics]' in an environment without "
    "pyspark, or give --engine spark"
)


@contextmanager
def spark_engine(
    engine: str | None = None,
    master: str | None = None,
    remote: str | None = None,
    conf: Mapping[str, str] | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> Iterator[SparkSession]:
    """Yields a session in UTC; ends it, and removes its files, at the end. Raises AnalyticsError.

    `engine`: of ENGINES. None: what `master` (Spark's URL of a cluster) or `remote` (sc://) asks for; else
    the session that is there already (spark-submit, a notebook); else the embedded one. `conf` overrides
    settings."""
    chosen = engine_of(engine, master, remote)
    settings = dict(conf or {})
    if chosen is None:
        yield from given_session(settings, progress)
    elif chosen == EMBEDDED:
        with _embedded(settings, progress) as spark:
            yield spark
    elif chosen == CONNECT:
        assert remote is not None
        with _connected(remote, settings, progress) as spark:
            yield spark
    else:
        with classic_session(master, settings, progress) as spark:
            yield spark


def check_engine(engine: str | None, master: str | None, remote: str | None) -> None:
    """Raises AnalyticsError if spark_engine() would do so for lack of a package or of Java, for versions
    that do not fit, or because a server is not reached. Called before work that such an error would waste."""
    chosen = engine_of(engine, master, remote)
    if chosen == EMBEDDED:
        _check_embedded()
    elif chosen == SPARK:
        check_classic()
    elif chosen == CONNECT and remote is not None:
        with _session(remote, FIRST_CONTACT_RETRIES) as spark:
            _check_server(spark, _place(remote))


def engine_of(engine: str | None, master: str | None, remote: str | None) -> str | None:
    """Returns which of ENGINES these options ask for; None: the existing session. AnalyticsError: the options
    contradict each other, or the existing session."""
    if engine is not None and engine not in ENGINES:
        raise AnalyticsError(f"--engine {engine}: there are {', '.join(ENGINES)}")
    if master is not None and remote is not None:
        raise AnalyticsError("--master and --remote: give one of them")
    if remote is not None and not remote.startswith("sc://"):
        raise AnalyticsError("--remote: give a URL of Spark Connect, sc://HOST:PORT")
    asked = {SPARK: "--master", CONNECT: "--remote"}
    wanted = SPARK if master is not None else CONNECT if remote is not None else engine
    if engine is not None and wanted != engine:
        raise AnalyticsError(f"--engine {engine} does not go with {asked[str(wanted)]}")
    if wanted == CONNECT and remote is None:
        raise AnalyticsError("--engine connect: give --remote sc://HOST:PORT as well")
    if is_submitted() and wanted in (None, SPARK):
        if master is not None:
            raise AnalyticsError(
                f"--master {master}: Spark is started already; give --master to spark-submit"
            )
        return None
    return wanted or EMBEDDED


def has_streams(spark: SparkSession) -> bool:
    """Returns whether the engine of this session has Structured Streaming. Sail has none; Spark's version()
    ends with a commit, Sail's is a number."""
    ((version,),) = spark.sql("SELECT version()").collect()
    return " " in version


def _check_embedded() -> None:
    if importlib.util.find_spec("pysail") is None:
        raise AnalyticsError(NO_EMBEDDED)
    version = tuple(int(part) for part in pyspark.__version__.split(".")[:2])
    if not CLIENTS_OF_SAIL[0] <= version <= CLIENTS_OF_SAIL[1]:
        oldest, newest = (".".join(map(str, each)) for each in CLIENTS_OF_SAIL)
        raise AnalyticsError(
            f"the embedded engine understands PySpark {oldest} to {newest}, and {pyspark.__version__} is "
            "installed: pip install 'keelmq[analytics]' in an environment of its own, or give --engine spark"
        )


@contextmanager
def _embedded(conf: Mapping[str, str], progress: Callable[[str], None]) -> Iterator[SparkSession]:
    _check_embedded()
    settings = dict(conf)
    pool_bytes = memory_bytes(DRIVER_MEMORY, settings.pop(DRIVER_MEMORY, DRIVER_MEMORY_DEFAULT))
    with tempfile.TemporaryDirectory(prefix="keelmq-spark-", ignore_cleanup_errors=True) as scratch:
        os.mkdir(f"{scratch}/tmp")
        # The user's settings in the environment take precedence.
        values = _sail_settings(scratch, pool_bytes) | {k: v for k, v in os.environ.items() if _is_of_sail(k)}
        with environment(values):
            import pysail
            from pysail.spark import SparkConnectServer

            server = SparkConnectServer(LOOPBACK, 0)
            server.start(background=True)
        try:
            progress(f"the embedded engine, Sail {pysail.__version__}")
            host, port = server.listening_address
            with (
                environment(_of_object_stores()),
                _session(f"sc://{host}:{port}", FIRST_CONTACT_RETRIES) as spark,
            ):
                _set_known(spark, settings)
                spark.conf.set(DEBUGGING, COMMON[DEBUGGING])  # PySpark's client reads it, Sail does not
                spark.conf.set(KEPT, ARROW)
                spark.conf.set(PATHS, OF_URLS)
                yield spark
        finally:
            server.stop()


def _sail_settings(scratch: str, pool_bytes: int) -> dict[str, str]:
    """Sail reads its settings from the environment when the server is made. Without the path,
    localCheckpoint() fails; without the limit, a large sort is never written to disk."""
    return {
        "RUST_LOG": "off",
        "SAIL_EXECUTION__CHECKPOINT__PATH": f"file://{scratch}/kept",
        "SAIL_RUNTIME__MEMORY_POOL__TYPE": "fair",
        "SAIL_RUNTIME__MEMORY_POOL__FAIR__MAX_SIZE": str(pool_bytes),
        "SAIL_RUNTIME__TEMPORARY_FILES__PATHS": f'["{scratch}/tmp"]',
        "SAIL_SPARK__SESSION_TIMEOUT_SECS": str(SESSION_TIMEOUT_S),
    }


def _of_object_stores() -> dict[str, str]:
    """Sail reads the settings of an object store at its first use, and refuses one without TLS unless a
    setting allows it."""
    is_plain = os.environ.get("AWS_ENDPOINT_URL", "").startswith("http://")
    return {"AWS_ALLOW_HTTP": "true"} if is_plain else {}


def _is_of_sail(name: str) -> bool:
    return name == "RUST_LOG" or name.startswith("SAIL_")


@contextmanager
def _connected(
    remote: str, conf: Mapping[str, str], progress: Callable[[str], None]
) -> Iterator[SparkSession]:
    place = _place(remote)
    send_functions()
    with _session(remote, FIRST_CONTACT_RETRIES) as spark:
        version = _check_server(spark, place)
        _check_workers(spark, place)
        progress(f"Spark Connect at {place}, Spark {version}")
        _set_policy(spark, RETRIES)
        _set_known(spark, conf)
        yield spark


def _place(remote: str) -> str:
    """Returns the URL without its parameters: one of them may be a token."""
    return remote.split("/;")[0].rstrip("/")


def _check_server(spark: SparkSession, place: str) -> str:
    """Returns the server's version of Spark. AnalyticsError: it is not reached, or too old."""
    try:
        version = spark.version
    except PySparkException as error:
        raise AnalyticsError(f"--remote {place}: {engine_error(error)}") from None
    if int(version.split(".")[0]) < SERVER_OLDEST:
        raise AnalyticsError(f"--remote {place}: Spark {version}; it must be {SERVER_OLDEST}.0 or newer")
    return version


def _check_workers(spark: SparkSession, place: str) -> None:
    """Raises AnalyticsError: the server cannot run Python functions of this client. Their Python must be of
    the same minor version, with pyarrow."""

    def same(batches):  # type: ignore[no-untyped-def]
        yield from batches

    try:
        spark.range(1).mapInArrow(same, "id bigint").collect()
    except PySparkException as error:
        raise AnalyticsError(
            f"--remote {place}: its Python workers do not run functions of this client: {engine_error(error)}"
        ) from None


@contextmanager
def _session(url: str, retries: int) -> Iterator[SparkSession]:
    """Yields a new session of a Connect server; releases it at the end, also if the server is gone."""
    with warnings.catch_warnings(), environment({}, without=("SPARK_REMOTE",)):
        warnings.filterwarnings("ignore", message=r"\[RETRIES_EXCEEDED\]")
        try:
            spark = SparkSession.builder.remote(url).create()
        except PySparkException as error:
            raise AnalyticsError(f"--remote: {engine_error(error)}") from None
        _set_policy(spark, retries)
        try:
            yield spark
        except PySparkException:
            _set_policy(spark, 0)  # the request that failed has waited for the server; the last one need not
            raise
        finally:
            try:
                spark.stop()
            except PySparkException:
                pass  # its server is gone, and an earlier request has failed already


def _set_policy(spark: SparkSession, retries: int) -> None:
    from pyspark.sql.connect.client.retries import DefaultPolicy

    policy = DefaultPolicy(
        max_retries=retries, max_backoff=BACKOFF_MS_MAX, max_server_retry_delay=BACKOFF_MS_MAX
    )
    spark.client.set_retry_policies([policy])


def _set_known(spark: SparkSession, conf: Mapping[str, str]) -> None:
    """Applies `conf`, and those settings of COMMON that this engine has. AnalyticsError: it lacks a setting
    of `conf`."""
    for name in conf:
        if not spark.conf.isModifiable(name):
            raise AnalyticsError(
                f"--conf {name}: this engine has no such setting, or it is set where it starts"
            )
    for name, value in COMMON.items():
        if name not in conf and spark.conf.isModifiable(name):
            spark.conf.set(name, value)
    for name, value in conf.items():
        spark.conf.set(name, value)

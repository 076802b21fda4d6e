"""ClientSettings: the settings of pulls, queries, filters, delays, timers and transactions. A part of
BrokerConfig.

Source: RocketMQ 5.3.3 BrokerConfig, MessageStoreConfig.
"""

from typing import Final, Literal

from pydantic import Field, field_validator

from broker.message.delay_levels import DEFAULT_LEVELS, DelayLevels
from broker.metadata.topics import illegal_name
from keelmq.remoting.telemetry import TelemetryConfig

TRACE_TOPIC: Final = "RMQ_SYS_TRACE_TOPIC"
SUSPEND_MS_MAX: Final = 120_000


class ClientSettings(TelemetryConfig):
    """Names are RocketMQ's keys; the description has the unit."""

    long_polling_enable: bool = Field(
        True, description="a pull of an empty queue waits for as long as the client asks"
    )
    short_polling_time_mills: int = Field(
        1_000, gt=0, description="ms that such a pull waits without longPollingEnable"
    )
    enable_property_filter: bool = Field(
        False, description="consumers may filter by SQL92 expressions over properties"
    )
    slave_read_enable: bool = Field(
        False, description="consumers that are far behind are sent to a slave, and slaves serve them"
    )
    lite_pull_message_enable: bool = Field(True, description="answer lite pull consumers (361)")
    default_query_max_num: int = Field(
        32, gt=0, le=64, description="messages of an answer to a query by unique key"
    )

    message_delay_level: str = Field(
        DEFAULT_LEVELS, description="how long each delay level is, from level 1 on; equal on all replicas"
    )

    start_accept_send_request_time_stamp: int = Field(
        0, ge=0, description="ms since 1970 before which messages are refused, with code 1"
    )

    reject_transaction_message: bool = Field(False, description="refuse transactional messages")
    transaction_time_out: int = Field(
        6_000, ge=0, description="ms until a producer is asked for the state of its transaction"
    )
    transaction_check_interval: int = Field(30_000, gt=0, description="ms until it is asked again")
    transaction_check_max: int = Field(
        15, ge=1, description="checks until a transaction is given up: TRANS_CHECK_MAX_TIME_TOPIC"
    )

    timer_wheel_enable: bool = Field(True, description="take timer messages (TIMER_DELIVER_MS and others)")
    timer_max_delay_sec: int = Field(
        259_200,
        gt=0,
        description="s; timers that are due after fileReservedTime are written again before retention comes",
    )
    timer_precision_ms: Literal[100, 1000] = Field(
        1_000, description="ms; a timer is delivered at the next multiple; equal on all replicas"
    )
    timer_stop_enqueue: bool = Field(
        False, description="pause: new timers wait in their queue; those from before the start are delivered"
    )
    store_reply_message_enable: bool = Field(
        True, description="keep replies (324, 325) in the topic <cluster>_REPLY_TOPIC, too"
    )
    trace_topic_enable: bool = Field(
        False, description="create the topic of message traces at the start, with one queue"
    )
    msg_trace_topic_name: str = Field(
        TRACE_TOPIC, min_length=1, description="its name; clients must be told another one"
    )
    recall_message_enable: bool = Field(False, description="producers may take timer messages back (370)")

    notify_consumer_ids_changed_enable: bool = Field(
        True, description="notify consumers of new and lost members of their group (40)"
    )
    channel_expired_timeout: int = Field(
        120_000, gt=0, description="ms without a heartbeat after which a client is gone"
    )

    priority_order_asc: bool = Field(
        True, description="0 is the lowest priority: pops read the last queue of a priority topic first"
    )
    pop_from_retry_probability: int = Field(
        20, ge=0, le=100, description="%, of pops that read the retry topics before the topic"
    )
    pop_from_retry_probability_for_priority: int = Field(
        0, ge=0, le=100, description="%, the same for pops in the order of priority; 0: retries come last"
    )
    use_separate_retry_queue: bool = Field(
        False, description="a pop's retries keep their queue, and so the order of their priority"
    )
    pop_polling_size: int = Field(
        1_024, gt=0, description="pops that may wait for one topic (or queue) and group; 209 for more"
    )
    default_message_request_mode: Literal["PULL", "POP"] = Field(
        "PULL", description="how groups consume for which the broker decides, and 401 has set nothing"
    )
    default_pop_share_queue_num: int = Field(
        -1, description="consumers whose queues a popping consumer shares, beside its own; 0 or -1: all"
    )

    telemetry_consumer_lag_interval: int = Field(
        60_000,
        ge=0,
        description="ms between two records of how far each consumer group is behind, of the 1000 pairs of "
        "group and topic with the most messages behind; 0: none",
    )

    @field_validator("msg_trace_topic_name")
    @classmethod
    def _legal(cls, text: str) -> str:
        problem = illegal_name(text)
        if problem is not None:
            raise ValueError(problem)
        return text

    @field_validator("message_delay_level")
    @classmethod
    def _levels(cls, text: str) -> str:
        DelayLevels(text)
        return text

    @property
    def suspend_ms_max(self) -> int:
        """How long a pull may be suspended, ms."""
        return SUSPEND_MS_MAX if self.long_polling_enable else self.short_polling_time_mills

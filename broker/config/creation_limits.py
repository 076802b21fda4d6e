"""CreationLimits: how many topics and subscription groups clients may create by using them. A part of
BrokerConfig."""

from pydantic import Field

from broker.admission.auto_creation import AutoCreation
from keelmq.runtime.config import Config


class CreationLimits(Config):
    """Administrators may create more, up to the bounds of the tables."""

    auto_create_topic_max: int = Field(
        40_000,
        ge=1,
        description="topics, retry topics included, above which sends create none; administrators may go on "
        "to 50000 (ours)",
    )
    auto_create_subscription_group_max: int = Field(
        80_000,
        ge=1,
        description="subscription groups above which consumers create none; administrators may go on to "
        "100000 (ours)",
    )
    auto_create_per_minute: int = Field(
        1_000,
        ge=0,
        description="topics, and as many groups, that one remote address may create per minute by using "
        "them; 0: no limit (ours)",
    )

    def configure_creation(self, topics: AutoCreation, groups: AutoCreation) -> None:
        """Gives both tables the limits that these settings have now."""
        per_minute = self.auto_create_per_minute
        topics.configure(count_max=self.auto_create_topic_max, per_minute=per_minute)
        groups.configure(count_max=self.auto_create_subscription_group_max, per_minute=per_minute)

    def topic_creation(self) -> AutoCreation:
        """Returns the limits of the topic table."""
        return AutoCreation(
            "topic",
            "autoCreateTopicMax",
            "mqadmin updateTopic",
            count_max=self.auto_create_topic_max,
            per_minute=self.auto_create_per_minute,
        )

    def group_creation(self) -> AutoCreation:
        """Returns the limits of the table of subscription groups."""
        return AutoCreation(
            "group",
            "autoCreateSubscriptionGroupMax",
            "mqadmin updateSubGroup",
            count_max=self.auto_create_subscription_group_max,
            per_minute=self.auto_create_per_minute,
        )

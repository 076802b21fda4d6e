"""The line for a terminal in a preview: what a shell makes of it is what the action would do."""

import shlex
from typing import Any, cast

import pytest

from keelmq.client.admin import AdminClient
from keelmq.console.actions.action import Acting, command_line
from keelmq.console.actions.settings import (
    UPDATE_BROKER_CONFIG,
    UPDATE_CONTROLLER_CONFIG,
    BrokerSetting,
    Setting,
)
from keelmq.console.examples import STATUS
from keelmq.remoting.servers.http_answers import NotFound

HOSTILE = "a b'; touch /tmp/x; '"


class NoSettings:
    """An AdminClient of servers without settings."""

    def __init__(self) -> None:
        self.brokers = self.controllers = self

    async def broker_config(self, address: str) -> dict[str, str]:
        return {}

    controller_config = broker_config


def acting(**changed: Any) -> Acting:
    admin = cast(AdminClient, NoSettings())
    return Acting(admin, **{"controllers": ("10.0.0.1:9878",), "status": STATUS, **changed})


@pytest.mark.parametrize("value", ["5", "", HOSTILE])
async def test_a_value_is_one_argument(value: str) -> None:
    one = await UPDATE_CONTROLLER_CONFIG.preview(acting(), Setting(key="k", value=value))
    assert shlex.split(one.command)[-4:] == ["-k", "k", "-v", value]
    asked = BrokerSetting(cluster="DefaultCluster", broker_name="broker-a", broker_id=1, key="k", value=value)
    other = await UPDATE_BROKER_CONFIG.preview(acting(), asked)
    assert shlex.split(other.command)[-4:] == ["-k", "k", "-v", value]


def test_what_is_not_given_has_no_option() -> None:
    line = command_line("mqadmin", "x", "-a", "", "-b", None, "-c", "a;b", "-d", 0)
    assert shlex.split(line) == ["mqadmin", "x", "-c", "a;b", "-d", "0"]


async def test_a_group_that_is_not_there_is_named_with_those_that_are() -> None:
    asked = BrokerSetting(cluster="DefaultCluster", broker_name="nobody", key="k", value="v")
    with pytest.raises(NotFound, match=r"nobody \(known: DefaultCluster/broker-a\)"):
        await UPDATE_BROKER_CONFIG.preview(acting(), asked)
    with pytest.raises(NotFound, match="known yet"):
        await UPDATE_BROKER_CONFIG.preview(acting(status=None), asked)

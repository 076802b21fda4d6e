"""Models on the wire: a validator is built when it is needed."""

from pydantic import TypeAdapter

from keelmq.remoting.operation import Wire, build_validators


def test_a_validator_is_built_at_the_first_use() -> None:
    class First(Wire):
        broker_id: int

    class Second(First):
        broker_name: str = "b"

    assert not First.__pydantic_complete__
    assert First.model_validate({"brokerId": "7"}).broker_id == 7
    assert First.__pydantic_complete__
    assert Second.__pydantic_complete__  # only direct subclasses of Wire
    assert Second(broker_id=1).model_dump(by_alias=True) == {"brokerId": 1, "brokerName": "b"}


def test_one_that_must_not_wait_is_built_before() -> None:
    class Needed(Wire):
        broker_id: int

    build_validators(Needed)
    assert Needed.__pydantic_complete__


def test_others_get_a_whole_schema_of_it() -> None:
    """FastAPI makes adapters of its own."""

    class Shown(Wire):
        broker_id: int

    adapter = TypeAdapter(list[Shown], config=None)
    assert adapter.json_schema()["$defs"]["Shown"]["properties"].keys() == {"brokerId"}
    assert not Shown.model_config["defer_build"]

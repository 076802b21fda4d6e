"""ACLs: parsing with clear errors, how updates merge, what is deleted."""

from typing import Any

import pytest

from keelmq.security.core.acls import (
    Acl,
    Action,
    Decision,
    InvalidAcl,
    Pattern,
    PolicyType,
    Resource,
    ResourceType,
    group_resource,
    parse_acl,
    parse_resource,
    topic_resource,
)
from tests.unit.keelmq.security.parts import acl_of

INFO = {
    "subject": "User:a",
    "policies": [
        {
            "policyType": "Custom",
            "entries": [
                {
                    "resource": "Topic:t*",
                    "actions": ["Pub", "Sub"],
                    "sourceIps": ["10.0.0.0/8"],
                    "decision": "Allow",
                }
            ],
        }
    ],
}


def with_entry(**changed: Any) -> dict[str, Any]:
    entry = {"resource": "Topic:t", "actions": ["Pub"], "decision": "Allow", **changed}
    return {"subject": "User:a", "policies": [{"policyType": "Custom", "entries": [entry]}]}


def lines(acl: Acl | None) -> list[str]:
    assert acl is not None
    return [
        f"{entry.resource.key} {','.join(sorted(each.name for each in entry.actions))} {entry.decision.name}"
        for policy in acl.policies
        for entry in policy.entries
    ]


def test_acl_info_comes_back_as_it_was() -> None:
    assert parse_acl(INFO).info() == INFO


def test_everything_is_parsed_in_any_case() -> None:
    entry = {"resource": "TOPIC:T", "actions": ["pub", "SUB"], "decision": "deny"}
    acl = parse_acl({"subject": "USER:a", "policies": [{"policyType": "default", "entries": [entry]}]})
    (parsed,) = acl.entries_of(PolicyType.DEFAULT)
    assert acl.subject == "User:a"
    assert parsed.resource == Resource(ResourceType.TOPIC, "T")
    assert parsed.actions == {Action.PUB, Action.SUB}
    assert parsed.decision is Decision.DENY


@pytest.mark.parametrize(
    ("text", "resource"),
    [
        ("*", Resource(ResourceType.ANY, "", Pattern.ANY)),
        ("Topic:*", Resource(ResourceType.TOPIC, "", Pattern.ANY)),
        ("topic:a*", Resource(ResourceType.TOPIC, "a", Pattern.PREFIXED)),
        ("Group:g", Resource(ResourceType.GROUP, "g")),
        ("Cluster:DefaultCluster", Resource(ResourceType.CLUSTER, "DefaultCluster")),
        ("Namespace:n", Resource(ResourceType.NAMESPACE, "n")),
        ("Topic:a:b", Resource(ResourceType.TOPIC, "a:b")),
        ("Topic:%RETRY%g", Resource(ResourceType.GROUP, "g")),
        ("Group:%RETRY%g*", Resource(ResourceType.GROUP, "g", Pattern.PREFIXED)),
    ],
)
def test_resources(text: str, resource: Resource) -> None:
    assert parse_resource(text) == resource
    assert parse_resource(resource.key) == resource


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Topic",
        "Topic:",
        ":t",
        "Queue:q",
        "4:t",
        "Any:x",
        "Topic:a*b",
        "Topic:a\nb",
        "Topic: a",
        "Topic:**",
        "**",
        "Topic:%RETRY%*",
    ],
)
def test_resources_that_are_refused(text: str) -> None:
    with pytest.raises(InvalidAcl):
        parse_resource(text)


def test_pitfall_13_group_resources_are_normalised_in_one_place() -> None:
    for name in ("g", "%RETRY%g"):
        assert group_resource(name) == Resource(ResourceType.GROUP, "g")
    assert topic_resource("%RETRY%g") == topic_resource("%RETRY%g+topic") == group_resource("g")
    assert topic_resource("%RETRY%g_topic") == group_resource("g_topic")


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (None, "the ACL is not a JSON object"),
        ({"subject": "a", "policies": []}, "'a' is not User:name"),
        ({"subject": "Role:a"}, "is not User:name"),
        ({"subject": "User:"}, "username can not be blank"),
        ({"subject": "User:a"}, "The policies is empty."),
        ({"subject": "User:a", "policies": {}}, "policies is not a list"),
        ({"subject": "User:a", "policies": ["x"]}, "a policy is not a JSON object"),
        ({"subject": "User:a", "policies": [{"entries": []}]}, "The policy entries is empty."),
        ({"subject": "User:a", "policies": [{"policyType": "Odd"}]}, "policyType 'Odd' is none of"),
        (with_entry(resource=""), "The resource is null."),
        (with_entry(decision=None), "The decision is null."),
        (with_entry(decision="Maybe"), "decision 'Maybe' is none of Allow, Deny"),
        (with_entry(actions=[]), "the actions is empty"),
        (with_entry(actions=["Any"]), "the action Any can not be granted"),
        (with_entry(actions=["Fly"]), "action 'Fly' is none of"),
        (with_entry(sourceIps=["10.0.0.300"]), "neither an IP address nor a CIDR"),
        (with_entry(sourceIps=["10.0.0.1"] * 101), "at most 100 source IPs"),
    ],
)
def test_pitfall_8_bad_acls_are_refused_with_a_reason(value: Any, says: str) -> None:
    with pytest.raises(InvalidAcl, match=says.replace("(", r"\(")):
        parse_acl(value)


def test_too_many_entries() -> None:
    with pytest.raises(InvalidAcl, match="at most 1000"):
        acl_of("a", *(f"Topic:t{number} Pub Allow" for number in range(1_001)))


def test_the_subject_of_the_header_counts_and_the_body_may_repeat_it() -> None:
    body = {"policies": INFO["policies"]}
    assert parse_acl(body, "User:b").subject == "User:b"
    with pytest.raises(InvalidAcl, match="the header about 'User:b'"):
        parse_acl(INFO, "User:b")


def test_an_update_merges_by_policy_type_and_resource() -> None:
    old = acl_of("a", "Topic:t Pub Allow", "Topic:u Sub Allow")
    new = acl_of("a", "Topic:t Sub Deny", "Group:g Sub Allow", default=("Topic:* Pub Allow",))
    assert lines(old.merged(new)) == [
        "Topic:t SUB DENY",
        "Topic:u SUB ALLOW",
        "Group:g SUB ALLOW",
        "Topic:* PUB ALLOW",
    ]


def test_the_prefix_and_the_literal_are_two_resources() -> None:
    merged = acl_of("a", "Topic:t Pub Allow").merged(acl_of("a", "Topic:t* Pub Deny"))
    assert lines(merged) == ["Topic:t PUB ALLOW", "Topic:t* PUB DENY"]


def test_deleting() -> None:
    acl = acl_of("a", "Topic:t Pub Allow", default=("Topic:t Pub Deny",))
    assert acl.without(None) is None
    assert lines(acl.without(parse_resource("Topic:t"))) == ["Topic:t PUB DENY"]
    assert lines(acl.without(parse_resource("Topic:t"), PolicyType.DEFAULT)) == ["Topic:t PUB ALLOW"]
    assert lines(acl.without(parse_resource("Topic:u"))) == lines(acl)
    assert acl_of("a", "Topic:t Pub Allow").without(parse_resource("Topic:t")) is None


def test_lists_are_filtered_by_resource() -> None:
    acl = acl_of("a", "Topic:t Pub Allow", "Group:g Sub Allow")
    assert lines(acl.about("Topic:")) == ["Topic:t PUB ALLOW"]
    assert acl.about("Cluster") is None

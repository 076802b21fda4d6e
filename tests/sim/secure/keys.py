"""Who signs with what in a secure world, and the settings that make programs check it."""

import json

from keelmq.security.signer import Credentials, Signer, signer_of

MEMBER = Credentials("cluster-member", "member-secret-of-the-simulator")
ROOT = Credentials("root", "first-password")
"""Created at the first start (initAuthenticationUser), and deleted at the brokers later."""
FOUNDER = "founder"
ATTACKER = "attacker"
"""Its processes have names that begin so."""
ADMIN = Credentials("admin", "admin-secret")
SETTINGS: dict[str, object] = {
    "authenticationEnabled": True,
    "authorizationEnabled": True,
    "initAuthenticationUser": json.dumps({"username": ROOT.access_key, "password": ROOT.secret_key}),
    "innerClientAuthenticationCredentials": json.dumps(
        {"accessKey": MEMBER.access_key, "secretKey": MEMBER.secret_key}
    ),
    "auditEnable": False,
}
BROKER_SETTINGS: dict[str, object] = {**SETTINGS, "haAuthenticationRequired": True}

UNPROVEN = "p2"
"""This producer signs as RocketMQ's clients do, without a proof: what it sends can be repeated."""


def signer_for(client: str) -> Signer:
    """What the client of that name signs with. Controllers have files of users, so the operator stays root
    there."""
    credentials = ROOT if client in ("operator", FOUNDER) else ADMIN
    return signer_of(credentials, proof=client != UNPROVEN)

"""Parameters of the actions on users."""

import pytest

from keelmq.console.actions.users import CreateUser, UpdateUser


@pytest.mark.parametrize("parameters", [CreateUser, UpdateUser])
def test_a_password_is_kept_as_it_was_typed(parameters: type[CreateUser | UpdateUser]) -> None:
    """A log-in does not strip it, and neither do the clients that sign with it."""
    asked = parameters.model_validate({"cluster": "c", "username": " bob ", "password": " two words "})
    assert asked.password is not None and asked.password.get_secret_value() == " two words "
    assert asked.username == "bob"

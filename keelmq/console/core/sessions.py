"""SessionTable: who is logged in. Pure: the caller brings the time and the random ids.

In memory only: after a restart all users log in again. The table is bounded; above the limit the least
recently used session ends.
"""

from typing import Final

import msgspec
from msgspec.structs import replace

IDLE_MS: Final = 30 * 60_000
"""A session ends when it was not used for this long."""
LIFE_MS: Final = 12 * 3_600_000
"""A session ends this long after the log-in, used or not."""
SESSIONS_MAX: Final = 256


class Session(msgspec.Struct, frozen=True):
    """secret: the password, which signs the user's actions; it is in no repr and no answer."""

    user: str
    secret: "Secret"
    began_ms: int
    used_ms: int
    checked_ms: int
    """When the password was last found right."""

    @property
    def ends_ms(self) -> int:
        """When it ends if it is not used any more."""
        return min(self.used_ms + IDLE_MS, self.began_ms + LIFE_MS)


class Secret:
    """A text that no repr shows."""

    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return "Secret(...)"


class SessionTable:
    """Session id -> session. Times are monotonic ms."""

    def __init__(self, sessions_max: int = SESSIONS_MAX) -> None:
        self._max = sessions_max
        self._sessions: dict[str, Session] = {}

    def __len__(self) -> int:
        """How many sessions there are, including ended ones that were not requested since."""
        return len(self._sessions)

    def begin(self, session_id: str, user: str, secret: str, now_ms: int) -> Session:
        """Adds a session. session_id: random, and too long to be guessed."""
        for each in [each for each, session in self._sessions.items() if session.ends_ms <= now_ms]:
            del self._sessions[each]
        if len(self._sessions) >= self._max:
            del self._sessions[min(self._sessions, key=lambda each: self._sessions[each].used_ms)]
        self._sessions[session_id] = session = Session(user, Secret(secret), now_ms, now_ms, now_ms)
        return session

    def use(self, session_id: str, now_ms: int) -> Session | None:
        """Returns a session that has not ended, and notes its use; None: there is none."""
        session = self.look(session_id, now_ms)
        if session is not None:
            self._sessions[session_id] = session = replace(session, used_ms=now_ms)
        return session

    def look(self, session_id: str, now_ms: int) -> Session | None:
        """As use(), without noting a use: an open page alone does not keep its user logged in."""
        session = self._sessions.get(session_id)
        if session is not None and session.ends_ms <= now_ms:
            del self._sessions[session_id]
            return None
        return session

    def checked(self, session_id: str, now_ms: int) -> None:
        """Notes that the password of a session is still right. One that has ended stays so."""
        session = self._sessions.get(session_id)
        if session is not None:
            self._sessions[session_id] = replace(session, checked_ms=now_ms)

    def end(self, session_id: str) -> None:
        """Ends a session. Safe to repeat."""
        self._sessions.pop(session_id, None)

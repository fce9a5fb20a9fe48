"""The errors that a user is meant to read."""

from __future__ import annotations


class DinnetError(Exception):
    """Work failed for a reason the user can act on.

    The message is one line that says what was wrong, where, and what to do. The command line
    prints it without a traceback and exits with `exit_code`.
    """

    exit_code = 1


class UsageError(DinnetError):
    """The command was used wrongly: an impossible option, a path of the wrong kind."""

    exit_code = 2


def printable(text: str) -> str:
    """One line that a terminal shows as it is: control characters and bytes that are no text are escaped.

    File names may hold line breaks and escape sequences.
    """
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "backslashreplace").decode() for c in text)

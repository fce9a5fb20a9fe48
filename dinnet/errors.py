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

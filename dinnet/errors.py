"""The errors that a user is meant to read."""

from __future__ import annotations

import errno
from typing import Final

#: Reasons of the system that say too little by themselves.
_REASONS: Final = {
    errno.ELOOP: "a loop of symbolic links",
    errno.ENAMETOOLONG: "the name is too long",
    errno.ENOENT: "no such file or folder",
    errno.ENOTDIR: "a part of the path is a file, not a folder",
}


class DinnetError(Exception):
    """Work failed for a reason the user can act on.

    The message is one line that says what was wrong, where, and what to do. The command line
    prints it without a traceback and exits with `exit_code`.
    """

    exit_code = 1


class UsageError(DinnetError):
    """The command was used wrongly: an impossible option, a path of the wrong kind.

    What is merely not there, or cannot be read or written, is no wrong use.
    """

    exit_code = 2


def reason(error: OSError) -> str:
    """Why the system refused, in words for a message that names the file itself."""
    return _REASONS.get(error.errno or 0) or error.strerror or str(error)


def printable(text: str) -> str:
    """One line that a terminal shows as it is: control characters and bytes that are no text are escaped.

    File names may hold line breaks and escape sequences.
    """
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "backslashreplace").decode() for c in text)

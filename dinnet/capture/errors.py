"""What can be wrong with a capture."""

from __future__ import annotations

from dinnet.errors import DinnetError


class CaptureError(DinnetError):
    """The capture cannot be read, or not further than this."""

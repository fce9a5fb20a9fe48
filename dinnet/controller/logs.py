"""What the controller says while it runs: lines for people, or one JSON object a line."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime


class JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line)


class Lines(logging.Formatter):
    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(message)s", "%Y-%m-%d %H:%M:%S")


class Errors(logging.StreamHandler):  # type: ignore[type-arg]
    """To standard error, for as long as it takes them: a full disk behind it is no reason to end."""

    def handleError(self, record: logging.LogRecord) -> None:
        pass


def set_up(as_json: bool) -> None:
    handler = Errors(sys.stderr)
    handler.setFormatter(JsonLines() if as_json else Lines())
    logger = logging.getLogger("dinnet")
    logger.handlers[:] = [handler]
    logger.setLevel(logging.INFO)
    logger.propagate = False

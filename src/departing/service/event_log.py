"""Log of the service: one JSON object per line, with a time and the name of an event."""

import json
import logging
import time
from typing import Any

log = logging.getLogger("departing")


def event_line(event: str, **fields: Any) -> str:
    """Return a line of the log."""
    return json.dumps({"time": round(time.time(), 3), "event": event, **fields})


def log_event(event: str, level: int = logging.INFO, **fields: Any) -> None:
    """Write a line to the log."""
    log.log(level, event_line(event, **fields))

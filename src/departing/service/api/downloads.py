"""Files of the decision log for download: written in a thread, one at a time, removed after a while."""

import asyncio
import os
import shutil
import tempfile
import threading
from pathlib import Path
from uuid import uuid4

from departing.service.export import write_log
from departing.service.service import Service

KEEP_SECONDS = 600.0  # a download must start within this time after the file is written


class Downloads:
    """Writes the log of a service to temporary files."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._stopping, self._lock = threading.Event(), asyncio.Lock()

    async def write(self, log_format: str) -> Path:
        """Write the log to a new file of this format, and return its path."""
        self._folder = self._folder or own_folder()
        target = Path(self._folder.name) / f"{uuid4().hex}.{log_format}"
        async with self._lock:
            await self._service.flush()
            details = (self._service.store.read, self._service.settings.missing_feedback, log_format, target)
            await asyncio.to_thread(write_log, *details, stopped=self._stopping.is_set)
        asyncio.get_running_loop().call_later(KEEP_SECONDS, lambda: target.unlink(missing_ok=True))
        return target

    def close(self) -> None:
        """Stop writing."""
        self._stopping.set()


def own_folder() -> tempfile.TemporaryDirectory[str]:
    """Create a temporary folder of this process, and remove those of killed processes."""
    for folder in Path(tempfile.gettempdir()).glob("departing-log-*"):
        pid = folder.name.split("-")[2]
        if pid.isdecimal() and not _is_running(int(pid)):
            shutil.rmtree(folder, ignore_errors=True)
    return tempfile.TemporaryDirectory(prefix=f"departing-log-{os.getpid()}-")


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # a process of another user
        pass
    return True

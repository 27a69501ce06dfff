"""Files of a SQLite store: permissions, locks, and signs of damage and loss.

Beside the store FILE are FILE-wal and FILE-shm while it is open, FILE.lock and FILE.trainer.lock. FILE.lock records
which store was served there, how much of it was on disk, and whether it was closed. A missing write-ahead log and an
emptied or replaced file are noticed by it.
"""

import errno
import logging
import os
import sqlite3
import sys
import threading
from collections import Counter, defaultdict
from collections.abc import Mapping
from contextlib import closing, suppress
from pathlib import Path

import msgspec

from departing.model.errors import InputError
from departing.service.event_log import log_event
from departing.service.store import queries

if sys.platform != "win32":
    import fcntl

MODE = 0o600  # the store holds names of users
RESTORE = "Restore a backup"
_COPY = b"\1\1"  # bytes 18 and 19 of a copy made by `departing backup`; a store that was served has 2 and 2
_RECORD_BYTES = 200  # of FILE.lock; a shorter record is filled with blanks
_COUNTED = ("recommendations", "feedback")
_ATTEMPTS = 10  # at comparing the size of the log while the writer changes it


Inode = tuple[int, int]  # device and number of a file


class Record(msgspec.Struct):
    """The content of FILE.lock: identity of the store, counters that were on disk, and whether it was closed."""

    identity: str
    closed: bool
    commits: int
    recommendations: int
    feedback: int


def open_private(path: Path) -> int:
    """Open a file for reading and writing, and create it for its owner only."""
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, MODE)


def try_lock(descriptor: int) -> bool:
    """Lock an open file; return False if another process, or another descriptor of this one, has locked it."""
    if sys.platform == "win32":
        raise InputError("A SQLite store needs Linux or macOS; on Windows use WSL.")
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def explain(error: BaseException) -> str:
    """Return the cause of a failure, with the next step if the file is damaged."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code == sqlite3.SQLITE_NOTADB:
        return f"it is not a SQLite database ({error}). Give another file, or restore a backup"
    if code == sqlite3.SQLITE_CORRUPT:
        return f"it is damaged ({error}). {RESTORE}"
    if isinstance(error, FileNotFoundError) or code == sqlite3.SQLITE_CANTOPEN:
        return "the file or its folder is missing or protected. Check that the folder exists and is mounted"
    return str(getattr(error, "strerror", None) or error).rstrip(".")


def is_damage(error: BaseException) -> bool:
    """Return True if an error is due to the file or its disk."""
    damage = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN)
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in damage


def is_temporary(error: BaseException) -> bool:
    """Return True if what failed may succeed later: the file is locked, or the disk or the memory is full."""
    if isinstance(error, OSError):
        return error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.ENOMEM)
    codes = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_FULL, sqlite3.SQLITE_NOMEM)
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in codes


class Connections:
    """Open connections to SQLite files in this process.

    Closing any descriptor of a file drops the locks that SQLite holds for this process. A descriptor is therefore
    closed after the last connection to its file.
    """

    def __init__(self) -> None:
        self._open: Counter[Inode] = Counter()
        self._deferred: defaultdict[Inode, list[int]] = defaultdict(list)
        self._lock = threading.Lock()

    def opened(self, path: Path) -> Inode:
        """Note a new connection; return the file for `closed`."""
        file = _inode(os.stat(path))
        with self._lock:
            self._open[file] += 1
        return file

    def closed(self, file: Inode) -> None:
        """Note that a connection was closed."""
        with self._lock:
            self._open[file] -= 1
            self._close_descriptors(file)

    def close_later(self, descriptor: int) -> None:
        """Close a descriptor of a file once no connection to it is open."""
        file = _inode(os.fstat(descriptor))
        with self._lock:
            self._deferred[file].append(descriptor)
            self._close_descriptors(file)

    def _close_descriptors(self, file: Inode) -> None:
        if self._open[file] <= 0:
            self._open.pop(file, None)
            for descriptor in self._deferred.pop(file, ()):
                os.close(descriptor)


def _inode(status: os.stat_result) -> Inode:
    return status.st_dev, status.st_ino


connections = Connections()


class StoreInUseError(InputError):
    """A store that another process serves, at least at present."""

    exit_code = 1


class StoreFiles:
    """Locks of a store that one process serves, and the record of what it wrote."""

    def __init__(self, path: Path, accept_loss: bool = False) -> None:
        self._path, self._accept_loss = path, accept_loss
        self._wal = path.with_name(path.name + "-wal")
        self._wal_inode: int | None = None
        self._wal_size = 0  # after the last commit; others make the log shorter only by a checkpoint
        self._size, self._is_shrinking = 0, False  # size of the store then; only this process makes it shorter
        self._identity, self._is_open = "", True
        self.warning: str | None = None  # about what the store lacks since it was opened
        self.commits = 0  # on disk
        self._lock_file = open_private(path.with_name(path.name + ".lock"))
        self._file = -1
        try:
            self._acquire()
        except BaseException:
            self.close()
            raise

    def _acquire(self) -> None:
        """Lock the store; raise if it is in use, missing or no store."""
        used = f"The store {str(self._path)!r} is already in use by another process"
        if not try_lock(self._lock_file):
            raise StoreInUseError(f"{used}; stop it first.")
        self._record = self._read_record()
        size = self._path.stat().st_size if self._path.exists() else None
        if not size and (self._record is not None or _size(self._wal)):
            self._refuse(f"is {'missing' if size is None else 'empty'}, but it was served here before")
            self._record = None
            self._wal.unlink(missing_ok=True)
        self._file = open_private(self._path)
        # The lock file may be that of a link, or a new one. On other systems this lock would exclude SQLite's own.
        if sys.platform == "linux" and not try_lock(self._file):
            raise StoreInUseError(f"{used}, by another name or with another lock file; stop it first.")
        names = os.fstat(self._file).st_nlink
        if names > 1:
            raise InputError(
                f"The store {str(self._path)!r} has {names} names (hard links), and its write-ahead log may have "
                "another one. Serve it by the name that was served before, after you have deleted the others."
            )
        self._is_copy = os.pread(self._file, 2, 18) == _COPY
        if self._is_copy and _size(self._wal):
            raise InputError(
                f"The store {str(self._path)!r} is a backup, but {str(self._wal)!r} belongs to the store before it "
                "and would damage it. Delete that file, and start again."
            )

    def verify(self, identity: str | None, counters: Mapping[str, int]) -> None:
        """Raise unless the store is the one that was served here, with everything that was on disk.

        `identity` is None for a file without tables.
        """
        record = self._record
        if record is None:
            return
        if identity not in (None, record.identity):
            self._refuse("is another one than was served here before")
            return
        missing = {name: getattr(record, name) - counters.get(name, 0) for name in _COUNTED}
        missing["commits"] = record.commits - self.commits
        if max(missing.values()) <= 0:
            return
        commits, recommendations, feedback = (f"{max(missing[name], 0):,}" for name in ("commits", *_COUNTED))
        counts = f"{commits} commits with {recommendations} recommendations and {feedback} rows of feedback"
        if record.closed or self._is_copy:
            log_event("older_store_served", logging.WARNING, store=str(self._path), missing=missing)
            self.warning = (
                f"The store {str(self._path)!r} is older than the one served here before: it lacks {counts}. "
                "Feedback for them is rejected with code lost_event, or unknown_event for event IDs of the caller. "
                "The next start no longer warns."
            )
            return
        cause = f"{self._wal.name} was deleted or damaged, or an older copy was restored"
        self._refuse(f"lacks {counts} that were on disk when the service ended ({cause})")

    def _refuse(self, problem: str) -> None:
        """Raise unless the loss was accepted."""
        sentence = f"The store {str(self._path)!r} {problem}."
        if not self._accept_loss:
            raise InputError(f"{sentence} {RESTORE}, or start with --accept-loss to go on without what is missing.")
        log_event("loss_accepted", logging.WARNING, reason=sentence)
        self.warning = f"The service was started with --accept-loss. {sentence} The next start no longer warns."

    def begin(self, identity: str, counters: Mapping[str, int]) -> None:
        """Record that the store is open."""
        self._identity = identity
        self.written(counters)
        self._wal_inode = os.stat(self._wal).st_ino  # the log exists since the store was opened

    def written(self, counters: Mapping[str, int], closed: bool = False) -> None:
        """Record the counters that are on disk.

        Without a sync: after a power failure the record may be old, but never ahead of the store.
        """
        record = Record(self._identity, closed, self.commits, *(counters.get(name, 0) for name in _COUNTED))
        os.pwrite(self._lock_file, msgspec.json.encode(record).ljust(_RECORD_BYTES), 0)
        self._wal_size, self._size = _size(self._wal), 0 if self._is_shrinking else self.size

    @property
    def size(self) -> int:
        """Bytes of the store without its write-ahead log."""
        return os.fstat(self._file).st_size

    def expect_truncation(self) -> None:
        """Note that this process makes the files shorter: at once, or in a checkpoint after others have read them."""
        self._wal_size, self._size, self._is_shrinking = 0, 0, True

    def truncated(self) -> None:
        """Note that the files have the size that they should have."""
        self._is_shrinking = False

    def problem(self) -> str | None:
        """Return why further writes would be lost: a file was deleted, cut or replaced while in use."""
        try:
            store, opened = os.stat(self._path), os.fstat(self._file)
            damaged = store.st_ino != opened.st_ino or opened.st_size < self._size
            damaged = damaged or self._wal_is_damaged() or os.pread(self._file, 2, 18) == _COPY
        except OSError:
            damaged = True
        if damaged:
            return (
                f"The store {str(self._path)!r} or its write-ahead log was deleted, cut or replaced while in use. "
                "Restart the service; if it then refuses to start, restore a backup."
            )
        return None

    def _wal_is_damaged(self) -> bool:
        """Return True if the write-ahead log was replaced or cut by another process.

        The writer may change the log and its expected size meanwhile, so only a constant expected size is compared.
        """
        for _ in range(_ATTEMPTS):
            expected, wal = self._wal_size, os.stat(self._wal)
            if wal.st_ino != self._wal_inode:
                return True
            if wal.st_size >= expected:
                return False
            if self._wal_size == expected:
                return not self._is_checkpointed(wal.st_size)
        return False

    def _is_checkpointed(self, wal_size: int) -> bool:
        """Return True if the log is shorter because another program has moved all commits to the store.

        A new connection reads the number of commits. It would fail if parts of the log were missing.
        """
        commits = self.commits
        try:
            with closing(sqlite3.connect(self._path, timeout=1.0)) as database:
                rows = database.execute(queries.SETTING, (queries.COMMITS_KEY,)).fetchall()
        except sqlite3.Error:
            return False
        if sum(int(value) for (value,) in rows) < commits:
            return False
        if self.commits == commits:
            self._wal_size = wal_size
        return True

    def _read_record(self) -> Record | None:
        """Return the record, None if there is none or a power failure damaged it."""
        with suppress(msgspec.DecodeError, UnicodeDecodeError):
            return msgspec.json.decode(os.pread(self._lock_file, _RECORD_BYTES, 0), type=Record)
        return None

    def close(self, counters: Mapping[str, int] | None = None) -> None:
        """Release the locks; `counters` if everything is on disk."""
        if not self._is_open:
            return
        self._is_open = False
        if counters is not None:
            self.written(counters, closed=True)
        if self._file >= 0:
            fcntl.flock(self._file, fcntl.LOCK_UN)
            connections.close_later(self._file)
        os.close(self._lock_file)


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0

"""A PostgreSQL server for tests, with data and socket in a temporary folder."""

import getpass
import glob
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

from helpers.servers import children, command_of

MISSING = "PostgreSQL is not installed (Debian: postgresql)"


def binaries():
    """The folder of the PostgreSQL programs, None if it is not installed."""
    found = shutil.which("initdb")
    folders = [Path(found).parent] if found else [Path(path) for path in glob.glob("/usr/lib/postgresql/*/bin")]
    return max(folders, default=None)


def program(name):
    """A program of the same installation; tests are skipped if there is none."""
    for folder in (binaries(), (binaries() / "initdb").resolve().parent):
        if (folder / name).exists():
            return folder / name
    pytest.skip(f"{name} is not installed (Debian: postgresql-client)")


class Postgres:
    """A server that can be stopped, killed and restarted; it runs as another user because PostgreSQL refuses root."""

    def __init__(self, environment=None):
        self.environment = environment  # of a slow disk, for which the server must sync its files
        self.folder = Path(tempfile.mkdtemp(prefix="pg"))
        self.owner = "postgres" if os.geteuid() == 0 else getpass.getuser()
        with socket.socket() as found:
            found.bind(("127.0.0.1", 0))
            self.port = found.getsockname()[1]
        if os.geteuid() == 0:
            shutil.chown(self.folder, self.owner)
        self.data, self.made = self.folder / "data", 0
        self._do(binaries() / "initdb", "-D", self.data, "-A", "trust", "-U", "postgres", "-E", "UTF8", "--no-sync")
        self.start()

    def _do(self, *command, wait=True):
        prefix = ["setpriv", "--reuid", "postgres", "--regid", "postgres", "--clear-groups"]
        full = [*(prefix if os.geteuid() == 0 else []), *map(str, command)]
        if wait:
            return subprocess.run(full, check=True, capture_output=True, cwd=self.folder)
        with (self.folder / "log").open("ab") as log:
            environment = os.environ | (self.environment or {})
            return subprocess.Popen(full, stdout=log, stderr=log, cwd=self.folder, env=environment)

    def start(self):
        settings = ["listen_addresses=127.0.0.1", "max_connections=50"]
        if self.environment is None:
            settings += ["fsync=off", "full_page_writes=off"]  # tests kill processes, not the operating system
        options = ("-k", self.folder, "-p", self.port, *(f"--{setting}" for setting in settings))
        self.process = self._do(binaries() / "postgres", "-D", self.data, *options, wait=False)
        deadline = time.monotonic() + 60
        while True:
            try:
                psycopg.connect(self.address("postgres")).close()
                return
            except psycopg.OperationalError:
                assert time.monotonic() < deadline, (self.folder / "log").read_text()
                time.sleep(0.1)

    def address(self, database):
        return f"postgresql://postgres@127.0.0.1:{self.port}/{database}"

    def new(self):
        """The address of a new, empty database."""
        self.made += 1
        self._execute(f"CREATE DATABASE d{self.made}")
        return self.address(f"d{self.made}")

    def copy(self, address):
        """Copy a database that nobody uses; return a function that replaces it by the copy, as pg_restore would."""
        name = address.rpartition("/")[2]
        self._execute(f"CREATE DATABASE {name}_copy TEMPLATE {name}")

        def restore():
            self._execute(f"DROP DATABASE {name} WITH (FORCE)", f"ALTER DATABASE {name}_copy RENAME TO {name}")

        return restore

    def _execute(self, *statements):
        with psycopg.connect(self.address("postgres"), autocommit=True) as connection:
            for statement in statements:
                connection.execute(statement)

    def kill(self):
        """Kill the server and all of its processes at once, as a power failure would."""
        self.process.send_signal(signal.SIGSTOP)  # so that it starts no new ones
        found = children(self.process.pid)
        for pid in (self.process.pid, *found):
            os.kill(pid, signal.SIGKILL)
        self.process.wait()
        while any(map(command_of, found)):
            time.sleep(0.01)
        (self.data / "postmaster.pid").unlink(missing_ok=True)

    def close(self):
        self.process.send_signal(signal.SIGQUIT)
        self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


@contextmanager
def running(environment=None):
    """Run a server; tests that need it are skipped if PostgreSQL is not installed."""
    if binaries() is None:
        pytest.skip(MISSING)
    server = Postgres(environment)
    try:
        yield server
    finally:
        server.close()

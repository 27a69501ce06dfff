"""Connections of the HTTP server: how many are open at once, and how long slow clients may hold them."""

import ipaddress
import math
import os
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

# Connections that the kernel holds until the server accepts them. The kernel lowers it to net.core.somaxconn.
BACKLOG = 4096
MAX_CONNECTIONS = 65_536  # open at once in one process
MIN_CONNECTIONS = 12_000  # allowed however little memory there is: 10,000 clients must be served
# Of memory at most, while a body arrives; 30 kB while headers do, 3 kB of a silent connection, 16 kB after a request.
CONNECTION_BYTES = 60_000
MEMORY_SHARE = 1 / 8  # of the memory, for connections
RESERVED_FILES = 256  # open files that are not connections: stores, logs, exports and pipes to other processes
# Seconds for the headers of a request to arrive, counted from the end of the request before: also the limit of idle
# connections. Longer than most pools keep a connection, short enough to free those that are held open on purpose.
IDLE_SECONDS = 30.0
MAX_HEADERS = 1 << 14  # bytes of the headers of a request, and of a part of a body: bounds the memory of a connection
# Seconds for a client to read what was sent. The kernel then drops the connection, so no response is held forever.
SEND_SECONDS = 30.0


def max_connections() -> int:
    """Raise the limit of open files as far as the system allows; return how many connections it and memory leave."""
    allowed = max(MIN_CONNECTIONS, int(min(MAX_CONNECTIONS, memory_limit() * MEMORY_SHARE / CONNECTION_BYTES)))
    wanted = allowed + RESERVED_FILES
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return allowed
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        raised = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        with suppress(ValueError, OSError):  # a system may allow less than it says
            resource.setrlimit(resource.RLIMIT_NOFILE, (raised, hard))
        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    files = wanted if soft == resource.RLIM_INFINITY else min(soft, wanted)
    return max(files - RESERVED_FILES, files // 2)


def memory_limit(root: Path = Path("/")) -> float:
    """Return the bytes of memory that this process may use: those of its control groups, or of the machine."""
    limits = [math.inf]
    with suppress(OSError, ValueError, AttributeError):  # systems without one of these
        limits.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    with suppress(OSError, ValueError):
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers in ("", "memory"):
                top = root / "sys/fs/cgroup" / controllers
                group = top / path.lstrip("/")
                file = "memory.limit_in_bytes" if controllers else "memory.max"
                for each in (group, *group.parents):
                    with suppress(OSError, ValueError):  # missing, or "max"
                        limits.append(int((each / file).read_text()))
                    if each == top:
                        break
    return min(limits)


def limit_unread(port: int) -> bool:
    """Let the kernel drop connections whose clients do not read; return False if the port is not open yet.

    Connections inherit the option from the socket that listens on the port.
    """
    option = getattr(socket, "TCP_USER_TIMEOUT", None)  # on Linux
    if option is None:
        return True
    is_open = False
    for each in tcp_sockets():
        if listens(each) and each.getsockname()[1] == port:
            each.setsockopt(socket.IPPROTO_TCP, option, int(1000 * SEND_SECONDS))
            is_open = True
    return is_open


def listens(given: socket.socket) -> bool:
    """Return True if a socket accepts connections, False if it is one."""
    return bool(given.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))


def network(host: str) -> str:
    """Return the address of a client; of an IPv6 address the network, which one person may own.

    >>> network("10.1.2.3"), network("::ffff:10.1.2.3"), network("2001:db8::1")
    ('10.1.2.3', '10.1.2.3', '2001:db8::')
    """
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv4Address):
        return host
    if address.ipv4_mapped is not None:  # an IPv4 client of a server that listens on ::
        return str(address.ipv4_mapped)
    return str(ipaddress.IPv6Network((int(address), 64), strict=False).network_address)


def is_connected(client: str) -> bool:
    """Return True if there is a connection to a client (`address:port`)."""
    return any(True for _ in _sockets_to(client))


def drop_connection(client: str) -> bool:
    """Close the connection to a client (`address:port`) at once; return False if there is none.

    The client notices that the response is incomplete.
    """
    for each in _sockets_to(client):
        with suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)
            return True
    return False


def drop_all(port: int) -> None:
    """Close all connections to a port of this process."""
    for each in connections_to(port):
        with suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)


def connections_to(port: int) -> Iterator[socket.socket]:
    """Yield the connections to a port of this process."""
    for each in tcp_sockets():
        with suppress(OSError):
            if each.getsockname()[1] == port and not listens(each):
                yield each


def _sockets_to(client: str) -> Iterator[socket.socket]:
    for each in tcp_sockets():
        with suppress(OSError):
            host, port = each.getpeername()[:2]
            if client in (f"{host}:{port}", f"[{host}]:{port}"):
                yield each


def tcp_sockets() -> Iterator[socket.socket]:
    """Yield the TCP sockets of this process, found by their numbers: the server keeps them to itself.

    The descriptors are used as they are and never closed. Closing even a copy of a file's descriptor would release
    the locks of SQLite on that file, and another process would then overwrite what this one is using.
    """
    for name in os.listdir("/dev/fd"):
        try:
            opened = socket.socket(fileno=int(name))
        except OSError:  # not a socket, or closed meanwhile
            continue
        try:
            if opened.family in (socket.AF_INET, socket.AF_INET6) and opened.type == socket.SOCK_STREAM:
                yield opened
        finally:
            opened.detach()

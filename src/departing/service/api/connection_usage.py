"""Use of the allowed connections: a gauge, a warning, and room for new ones when nearly all are in use."""

import asyncio
import logging
import os
import socket
import struct
import time
from contextlib import suppress
from itertools import groupby
from typing import Any

from departing.service.api.connections import connections_to, network
from departing.service.event_log import log_event

FEW_CONNECTIONS = 4000  # below which the limit of open files deserves a warning
NEARLY_FULL = 0.9  # share of the connections in use from which the operator is warned, and silent ones are closed
FREED = 0.8  # share of the connections in use after silent ones were closed
SILENT_SECONDS = 5.0  # without a response, after which a connection may be closed to make room for others
# Share of the connections that an address, or a /64 network of IPv6, keeps in any case. Those beyond it are closed
# first, whatever they send, so that ten addresses at least are needed to keep everybody else out.
FAIR_SHARE = 0.1
WATCH_SECONDS = 1.0  # between two looks
LOG_SECONDS = 60.0  # between two events about closed connections, so that they do not fill the log
TCP_INFO = struct.Struct("=8x36xI")  # of Linux, up to the field with the milliseconds since data were sent
HAS_TCP_INFO = hasattr(socket, "TCP_INFO")  # without it, as on macOS, silent connections are not recognised


class ConnectionUsage:
    """Connections in use, out of those allowed.

    Above the limit the server accepts nothing more, probes included. Clients that open many connections, or send
    nothing, would stop the service for as long as the limit of idle connections allows, so they are closed earlier.
    """

    def __init__(self, allowed: int, port: int) -> None:
        self.allowed, self.dropped = allowed, 0
        self._port, self._used, self._logged = port, 0, -LOG_SECONDS

    def count(self) -> int:
        """Return the number of open connections; takes a few microseconds for each."""
        self._used = sum(1 for _ in connections_to(self._port))
        return self._used

    def metrics(self) -> list[tuple[str, str, str, int]]:
        """Return names, kinds, texts and values for Prometheus."""
        return [
            ("connections", "gauge", "Open connections.", self.count()),
            ("max_connections", "gauge", "Connections that may be open at once.", self.allowed),
            (
                "dropped_connections_total",
                "counter",
                "Connections closed to make room for others, since this process started.",
                self.dropped,
            ),
        ]

    def warnings(self) -> dict[str, str]:
        """Return warnings about the limit by their keys, from the last count."""
        warnings = dict[str, str]()
        if self.allowed < FEW_CONNECTIONS:
            warnings["connection_limit_low"] = (
                f"The limit of open files allows only {self.allowed:,} connections at once. Raise it, such as "
                "with `ulimit -n 65536` or LimitNOFILE of systemd."
            )
        if self._used >= NEARLY_FULL * self.allowed:
            closed = "; those of clients with most, and silent ones, are closed" if HAS_TCP_INFO else ""
            warnings["connections_nearly_full"] = (
                f"{self._used:,} of {self.allowed:,} connections are in use{closed}. Limit the connections of each "
                "client at the proxy, or raise the limit of open files."
            )
        return warnings

    async def check(self) -> None:
        """Close connections if nearly all are in use; to be called every `WATCH_SECONDS`."""
        files = len(os.listdir("/dev/fd"))  # an upper bound that is fast to get
        self._used = min(self._used, files)
        if files >= NEARLY_FULL * self.allowed:
            await asyncio.to_thread(self.make_room)

    def make_room(self) -> None:
        """Close connections if nearly all are in use.

        First those of the clients that have most, then any without a response for longest.
        """
        if self.count() < NEARLY_FULL * self.allowed:
            return
        chosen = set(self._superfluous()[: self._used - int(FREED * self.allowed)])
        dropped = 0
        for each in connections_to(self._port):
            with suppress(OSError):
                if each.getpeername() in chosen:
                    each.shutdown(socket.SHUT_RDWR)
                    dropped += 1
        self.dropped += dropped
        if time.monotonic() - self._logged >= LOG_SECONDS:
            self._logged = time.monotonic()
            event = "connections_nearly_full"
            log_event(event, logging.WARNING, used=self._used, allowed=self.allowed, closed=dropped)

    def _superfluous(self) -> list[Any]:
        """Return the peers of the connections that may be closed, in this order.

        The connections of an address are ranked from the one with the latest response. Those with the highest ranks
        come first, so that the addresses with most connections lose theirs until they have equally many.
        """
        peers = list[tuple[str, int, Any]]()  # network, milliseconds since data were sent, address
        for each in connections_to(self._port) if HAS_TCP_INFO else ():
            with suppress(OSError, struct.error):
                milliseconds = TCP_INFO.unpack(each.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, TCP_INFO.size))[0]
                peer = each.getpeername()
                peers.append((network(peer[0]), milliseconds, peer))
        ranked = [
            (rank, milliseconds, peer)
            for _, same in groupby(sorted(peers), key=lambda row: row[0])
            for rank, (_, milliseconds, peer) in enumerate(same)
        ]
        excess = sorted((row for row in ranked if row[0] >= FAIR_SHARE * self.allowed), reverse=True)
        silent = sorted((row[1:] for row in ranked if row[1] >= 1000 * SILENT_SECONDS), reverse=True)
        return list(dict.fromkeys([row[-1] for row in (*excess, *silent)]))

"""A listener on a link: it stands between a member and a port of another, passes everything on as it
is, and keeps what the first one sent. Connections that were open before it came do not pass it."""

from __future__ import annotations

import itertools
import socket
import threading

from network import Network, NetworkError

_ports = itertools.count(20_000)


class Tap:
    def __init__(self, network: Network, a: int, b: int, port: int) -> None:
        """Of the connections that host `a` opens to that port of host `b`."""
        self._network, self._to = network, (network.addresses[b], port)
        self._mutex = threading.Lock()
        self._sent: list[bytearray] = []
        own = next(_ports)
        self._listener = network.listen_on_switch(own)
        network.lead(a, b, port=port, to_port=own)
        threading.Thread(target=self._accept, daemon=True).start()

    def sent(self) -> list[bytes]:
        """By connection, in the order in which they were opened."""
        with self._mutex:
            return [bytes(one) for one in self._sent]

    def _accept(self) -> None:
        while True:
            try:
                caller, _ = self._listener.accept()
            except OSError:
                return
            try:
                called = self._network.connect_from_switch(*self._to)
            except NetworkError:
                caller.close()
                continue
            record = bytearray()
            with self._mutex:
                self._sent.append(record)
            for source, target, kept in ((caller, called, record), (called, caller, None)):
                threading.Thread(
                    target=self._pass_on, args=(source, target, kept), daemon=True
                ).start()

    def _pass_on(
        self, source: socket.socket, target: socket.socket, kept: bytearray | None
    ) -> None:
        try:
            while piece := source.recv(1 << 16):
                if kept is not None:
                    with self._mutex:
                        kept += piece
                target.sendall(piece)
            target.shutdown(socket.SHUT_WR)
        except OSError:
            for end in (source, target):
                try:
                    end.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass

    def close(self) -> None:
        self._listener.close()

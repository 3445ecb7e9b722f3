"""systemd's notification protocol, sd_notify(3): a datagram to the socket that $NOTIFY_SOCKET names."""

from __future__ import annotations

import os
import socket


class Notifier:
    """Does nothing if there is no socket."""

    def __init__(self) -> None:
        address = os.environ.get("NOTIFY_SOCKET", "")
        self._address = f"\0{address[1:]}" if address.startswith("@") else address
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) if address else None
        self._status = ""

    def watchdog_interval_s(self) -> float | None:
        """Returns half of systemd's watchdog timeout, as it recommends, or None if there is no watchdog."""
        usec, pid = os.environ.get("WATCHDOG_USEC", ""), os.environ.get("WATCHDOG_PID")
        if self._socket is None or not usec.isdigit() or (pid is not None and pid != str(os.getpid())):
            return None
        return int(usec) / 1e6 / 2

    def ready(self) -> None:
        self._send("READY=1")

    def stopping(self) -> None:
        self._send("STOPPING=1")

    def alive(self) -> None:
        self._send("WATCHDOG=1")

    def status(self, text: str) -> None:
        """One line for `systemctl status`; sent only when it changes."""
        if text != self._status:
            self._status = text
            self._send(f"STATUS={text}")

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()

    def _send(self, message: str) -> None:
        if self._socket is not None:
            try:
                self._socket.sendto(message.encode(), socket.MSG_DONTWAIT, self._address)
            except OSError:
                return  # systemd is gone or busy: nothing can be done

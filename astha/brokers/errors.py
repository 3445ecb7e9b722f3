"""Why a broker can't be used, in words that name the remedy."""

from __future__ import annotations


class BrokerError(Exception):
    """`lasting`: another attempt fails too, until settings, files or rights are corrected."""

    def __init__(self, message: str, lasting: bool = False) -> None:
        super().__init__(message)
        self.lasting = lasting

from __future__ import annotations

from components.commands.insert import FORMATS
from components.lib.storage_manager import readers


def test_the_option_offers_the_formats_of_the_readers() -> None:
    assert FORMATS == readers.FORMATS

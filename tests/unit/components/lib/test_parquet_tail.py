from __future__ import annotations

import pytest

from components.lib.parquet_tail import TAIL, footer_length


def test_the_length_of_the_footer_is_read_from_the_last_bytes() -> None:
    assert footer_length(b"anything" + (300).to_bytes(4, "little") + b"PAR1") == 300
    assert len((300).to_bytes(4, "little") + b"PAR1") == TAIL


@pytest.mark.parametrize("ending", [b"", b"PAR1", b"\0\0\0\0PAR2", b"\0\0\0\0PARE"])
def test_other_files_are_refused(ending: bytes) -> None:
    with pytest.raises(ValueError, match="does not end with PAR1"):
        footer_length(ending)

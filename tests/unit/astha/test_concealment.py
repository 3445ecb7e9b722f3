from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from astha.concealment import MASK, Concealment


def test_a_secret_is_hidden_however_it_is_spelt() -> None:
    secret = 'pa ss"wörd/+'
    conceal = Concealment([secret])
    for text in (secret, f"postgresql://u:{'pa%20ss%22w%C3%B6rd%2F%2B'}@h", json.dumps({"password": secret})):
        assert conceal(text) != text
        assert MASK in conceal(text)


def test_nothing_is_changed_without_secrets_or_for_one_too_short_to_be_told_from_text() -> None:
    assert Concealment()("as it is") == "as it is"
    assert Concealment(["a"])("as it is") == "as it is"


@given(secret=st.text(min_size=4), before=st.text(), after=st.text())
def test_no_secret_survives(secret: str, before: str, after: str) -> None:
    concealed = Concealment([secret])(before + secret + after)
    assert secret not in concealed.replace(MASK, "")  # the rest may happen to spell it together

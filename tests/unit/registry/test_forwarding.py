from __future__ import annotations

from registry.contract import MetadataStore
from registry.forwarding import ForwardingStore


def test_every_verb_of_the_contract_is_forwarded() -> None:
    verbs = {name for name in dir(MetadataStore) if not name.startswith("_")}
    assert verbs <= set(vars(ForwardingStore))

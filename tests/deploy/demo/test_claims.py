from __future__ import annotations

import pytest

from deploy.demo.claims import counts, lacks, less, notes, prints, same
from deploy.demo.story import Claim, Notes, NotSo

BEFORE = "shop.visits  equal  1,300 files, 30,000 rows"


@pytest.mark.parametrize(
    ("claim", "output"),
    [
        (prints("4,000 rows"), BEFORE),
        (lacks("equal"), BEFORE),
        (counts(r"\d+ rows", 2, ""), BEFORE),
        (notes("files", r"(\d+) objects"), BEFORE),
        (same("files", r"([\d,]+) files", ""), BEFORE.replace("1,300", "3")),
        (less("files", r"([\d,]+) files", ""), BEFORE),
        (less("never noted", r"([\d,]+) files", ""), BEFORE),
    ],
)
def test_a_false_claim_is_refused(claim: Claim, output: str) -> None:
    with pytest.raises(NotSo):
        claim(output, {"files": "1,300"})


def test_true_claims_say_so() -> None:
    found: Notes = {}
    assert notes("files", r"([\d,]+) files")(BEFORE, found) == ""
    assert prints("30,000 rows", "All rows.")(BEFORE, found) == "All rows."
    assert counts(r"[\d,]+ (?:rows|files)", 2, "Two.")(BEFORE, found) == "Two."
    assert same("files", r"([\d,]+) files", "As before")(BEFORE, found) == "As before (1,300)"
    assert less("files", r"(\d+) files", "Fewer")("3 files", found) == "Fewer: 1,300 before, 3 now"

"""A topic: produced, consumed, and turned into a table on Spark."""

from __future__ import annotations

from deploy.demo.claims import counts, prints
from deploy.demo.machine import no_spark
from deploy.demo.story import Chapter, Step

RECORDS = """\
seq 5000 | awk '{print "{\\"id\\": " $1 ", \\"page\\": \\"/item/" $1 % 50 "\\"}"}' > clicks.jsonl"""


def chapter() -> Chapter:
    return Chapter(
        "topic",
        "A topic, without a broker",
        "Records go to objects beside the tables; the registry knows which object holds which offsets.",
        (
            Step("astha topics create clicks --partitions 3"),
            Step(RECORDS),
            Step(
                "astha produce clicks --input clicks.jsonl",
                (prints("5,000 records in 3 partitions", "All records are durable."),),
            ),
            Step(
                "astha consume clicks --group readers | wc -l",
                (counts(r"^\s*5000$", 1, "A consumer group has read every record."),),
            ),
            Step(
                "astha groups lag readers",
                (counts(r"^clicks +\d +([\d,]+) +0 +\1 +0 ", 3, "It has committed the end of all partitions."),),
            ),
        ),
    )


def to_table() -> Chapter:
    return Chapter(
        "topic-table",
        "The topic becomes a table, on Spark",
        "Files and offsets are registered in one transaction: each record is in the table exactly once.",
        (
            Step("astha tables create shop.clicks --column id:long! --column page:string"),
            Step(
                "astha topics to-table clicks shop.clicks",
                (prints("shop.clicks: 5,000 rows", "All records of the topic are rows of the table."),),
                limit_s=300,
            ),
        ),
        no_spark,
    )

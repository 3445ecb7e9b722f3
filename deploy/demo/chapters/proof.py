"""The proof at the end."""

from __future__ import annotations

from deploy.demo.claims import lacks, prints
from deploy.demo.story import Chapter, Step


def chapter() -> Chapter:
    return Chapter(
        "proof",
        "Everything is equal",
        "`verify` compares the registry with Iceberg's manifests and with every file in storage, byte by byte.",
        (
            Step(
                "astha verify --files --checksums",
                (prints("equal: "), lacks("different", "Registry, Iceberg and storage are equal.")),
            ),
            Step("astha status", (prints("ready     yes", "Every component is live."),), until=True),
        ),
    )

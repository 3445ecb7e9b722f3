"""A project, its registry and its daemon."""

from __future__ import annotations

from deploy.demo.claims import notes, prints
from deploy.demo.story import Chapter, Service, Step


def chapter() -> Chapter:
    return Chapter(
        "start",
        "One machine, two commands",
        "`init` writes the settings; `up` starts the registry, creates its schema and runs the daemon.",
        (
            Step("astha init shop && cd shop", (notes("registry", r"^The registry is (.*)\.$"),), enters="shop"),
            Service("astha up", "up.log", lambda log: "Ctrl-C stops everything" in log),
            Step(
                "astha status", (prints("ready     yes", "The daemon leads, and every component is live."),), until=True
            ),
        ),
    )

from __future__ import annotations

from itertools import pairwise
from typing import Any

from astha.listener.history import History


def status(delivered: int, failures: int = 0, problems: int = 0) -> dict[str, Any]:
    return {
        "source": {"lag": 5},
        "components": [
            {
                "name": "audit",
                "lag_s": 0.5,
                "queue": {"events": 3},
                "counts": {"delivered": {"topics": {"INSERT": delivered, "UPDATE": 0}}, "failures": failures},
                "problems": [{"subject": str(number)} for number in range(problems)],
            }
        ],
    }


def test_rates_are_between_two_samples() -> None:
    history = History()
    assert history.add(status(10), 1_000)["components"][0]["events_per_s"] == 0.0
    shown = history.add(status(30, 4), 3_000)["components"][0]
    assert (shown["events_per_s"], shown["failures_per_s"]) == (10.0, 2.0)
    assert history.add(status(0), 4_000)["components"][0]["events_per_s"] == 0.0  # another leader counts from 0


def test_an_hour_is_kept_one_sample_per_five_seconds() -> None:
    history = History()
    for second in range(2 * 3600):
        history.add(status(second), second * 1_000)
    assert len(history.samples) == 720
    times = [sample.at for sample in history.samples]
    assert {after - before for before, after in pairwise(times)} == {5_000}
    assert history.samples[-1].components["audit"].events_per_s == 1.0


def test_few_of_many_problems_are_sent() -> None:
    component = History().add(status(1, problems=10_000), 1)["components"][0]
    assert (len(component["problems"]), component["problem_count"]) == (20, 10_000)

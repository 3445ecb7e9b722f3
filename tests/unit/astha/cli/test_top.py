from __future__ import annotations

from typing import Any

from rich.console import Console

from astha.cli.top import Rates, sparkline


def status(delivered: int, **changed: Any) -> dict[str, Any]:
    component = {
        "name": "audit",
        "state": "live",
        "lag_s": 0.25,
        "queue": {"events": 7},
        "counts": {"delivered": {"topics": {"INSERT": delivered}}, "failures": 2, "refreshes": 1},
        "breaker": {"state": "closed"},
        "failure": None,
        "problems": [],
    }
    return {
        "version": "0.1.0",
        "registry": "sqlite:///[red]x",
        "ready": True,
        "reasons": [],
        "leadership": {"role": "leading"},
        "source": {"connected": True, "detail": None, "received": 900, "lag": 5, "unit": "changes"},
        "components": [{**component, **changed}],
    }


FAILURE = {
    "call": "delivery", "error": "OSError: no space", "hint": "disk full?", "attempt": 3, "attempts": 30, "at": 1,
    "next_try_s": 4.2,
}  # fmt: skip


def text(shown: Any, width: int = 120) -> str:
    console = Console(width=width, record=True, file=None)
    with console.capture() as captured:
        console.print(shown)
    return captured.get()


def test_shows_rates_between_two_samples() -> None:
    rates = Rates()
    rates.add(status(10), 1.0)
    shown = text(rates.shown(status(60), 3.0))
    assert "25.0" in shown
    assert "sqlite:///[red]x" in shown
    assert "5 changes behind the server" in shown


def test_another_leader_counts_from_zero() -> None:
    rates = Rates()
    rates.add(status(100), 1.0)
    assert rates.add(status(3), 2.0) == {"audit": 0.0}


def test_an_open_circuit_and_reasons_are_shown() -> None:
    given = status(1, state="broken", breaker={"state": "open"})
    given |= {"ready": False, "reasons": ["component audit is broken: [x]"]}
    shown = text(Rates().shown(given, 1.0))
    assert "not ready" in shown
    assert "component audit is broken: [x]" in shown
    assert "open" in shown


def test_a_delivery_that_is_tried_again_says_why() -> None:
    shown = text(Rates().shown(status(1, failure=FAILURE), 1.0))
    assert "! audit: delivery failed, attempt 3 of 30, tried again in 4 s: OSError: no space (disk full?)" in shown
    assert "retrying" in shown


def test_a_narrow_terminal_shows_what_matters_most_whole() -> None:
    given = status(1, state="waiting for the registry")
    given |= {"ready": False, "reasons": [f"reason {number}" for number in range(9)]}
    given["leadership"] = {"role": "waiting for the registry", "leader": None}
    shown = text(Rates().shown(given, 1.0, 80), 80)
    assert "…" not in shown
    assert "failures" in shown
    assert "refreshes" not in shown
    assert "and 3 more" in shown
    assert "`astha check`" in " ".join(shown.split())


def test_a_standby_names_the_leader() -> None:
    given = status(1, state="standing by")
    given["leadership"] = {"role": "standing by", "leader": "there:2"}
    assert "there:2 leads" in text(Rates().shown(given, 1.0))


def test_a_sparkline_is_relative_to_its_maximum() -> None:
    assert sparkline([]) == ""
    assert sparkline([0.0, 0.0]) == "  "
    assert sparkline([0.0, 5.0, 10.0]) == " \u2584\u2588"

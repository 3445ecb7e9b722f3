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


def text(shown: Any) -> str:
    console = Console(width=120, record=True, file=None)
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


def test_a_sparkline_is_relative_to_its_maximum() -> None:
    assert sparkline([]) == ""
    assert sparkline([0.0, 0.0]) == "  "
    assert sparkline([0.0, 5.0, 10.0]) == " \u2584\u2588"

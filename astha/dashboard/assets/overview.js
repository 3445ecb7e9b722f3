// The path of an event as it is: registry -> source -> lanes -> components; and an hour of history.
import { h, state, badge, number, plural, bytes, rate, seconds, when, replace } from "./dom.js";
import { lines, sparkline } from "./charts.js";
import { get } from "./api.js";
import { onComponent, button } from "./actions.js";

const STORED_MS = 5000;
const opened = new Set(); // components whose tables are shown: the cards are drawn again every second

export function overview(main, { status, onStatus, guarded }) {
  const verdict = h("section", { class: "verdict", "aria-live": "polite" });
  const path = h("section", { class: "path", "aria-label": "The path of an event" });
  const charts = h("section", { class: "charts", "aria-label": "The last hour" });
  replace(main, h("h1", {}, "Overview"), verdict, path, h("h2", {}, "The last hour"), charts);
  let samples = [];
  let drawn = 0;
  let shownVerdict = "";

  const show = (current) => {
    const judged = JSON.stringify([current.ready, current.reasons, current.leadership, current.clock, current.components.map((one) => one.problems)]);
    if (judged !== shownVerdict) { // otherwise a screen reader would read it again every second
      shownVerdict = judged;
      replace(verdict, health(current));
    }
    const focused = document.activeElement?.dataset?.key;
    replace(path, stages(current, samples));
    if (focused) path.querySelector(`[data-key="${CSS.escape(focused)}"]`)?.focus();
    if (current.at - (samples.at(-1)?.at ?? 0) >= STORED_MS) {
      samples.push(sample(current));
      samples = samples.slice(-720);
    }
    if (Date.now() - drawn > STORED_MS || !charts.childElementCount) {
      drawn = Date.now();
      replace(charts, history(samples));
    }
  };
  guarded(charts, async () => {
    samples = (await get("/api/history")).samples;
    drawn = 0;
    if (status()) show(status());
    else replace(charts, history(samples));
  });
  if (status()) show(status());
  else replace(verdict, h("p", { class: "loading" }, "Waiting for the daemon’s status…"));
  return onStatus(show);
}

const sample = (status) => ({
  at: status.at,
  source_lag: status.source.lag,
  components: Object.fromEntries(status.components.map((one) => [one.name, [one.events_per_s, one.failures_per_s, one.lag_s, one.queue.events]])),
});

function health(status) {
  const { leadership } = status;
  const standby = leadership.role === "standing by";
  const problems = status.components.reduce((sum, one) => sum + one.problem_count, 0);
  const title = status.ready ? "Every change reaches every component" : standby ? "This daemon stands by" : "Not every change reaches every component";
  return [
    h("div", { class: `headline ${status.ready ? "good" : standby ? "info" : "bad"}` }, h("strong", {}, title),
      h("span", {}, `${leadership.role}${leadership.epoch === null ? "" : `, epoch ${leadership.epoch}`} · version ${status.version}`)),
    standby && h("p", {}, `The leader is ${leadership.leader || "not known"}.`),
    !standby && status.reasons.length > 0 && h("ul", { class: "reasons" }, status.reasons.map((reason) => h("li", {}, reason))),
    status.clock && h("p", { class: "warn" }, status.clock),
    problems > 0 && h("details", {}, h("summary", {}, `${plural(problems, "problem")} with single tables`),
      h("ul", {}, status.components.flatMap((one) => one.problems.map((problem) =>
        h("li", {}, h("strong", {}, `${one.name}: ${problem.subject}`), ` ${problem.reason} `, "(since ", when(problem.since), ")"))))),
  ];
}

function stages(status, samples) {
  const { source } = status;
  return [
    h("div", { class: "stage" }, h("h2", {}, "Registry"), h("p", { class: "mono wrap" }, status.registry)),
    h("div", { class: "arrow", "aria-hidden": "true" }),
    h("div", { class: `stage ${source.connected ? "" : "bad"}` }, h("h2", {}, "Source"),
      source.connected ? badge("connected", "good") : badge("not connected", "bad"),
      facts([
        ["behind the server", source.lag === null ? "–" : `${number(source.lag)} ${source.unit}`],
        ["received", number(source.received)],
        ["acknowledged", number(source.acknowledged)],
        source.retained_bytes !== null && ["retained", bytes(source.retained_bytes)],
        source.wal_status && ["WAL status", source.wal_status],
      ]),
      source.detail && h("p", { class: "reason" }, source.detail)),
    h("div", { class: "arrow", "aria-hidden": "true" }),
    h("div", { class: "lanes" }, status.components.length
      ? status.components.map((one) => lane(one, source.unit, samples))
      : h("p", { class: "empty" }, "No component is subscribed: changes are acknowledged and discarded. Add components to subscriptions.yaml.")),
  ];
}

const facts = (pairs) => h("dl", {}, pairs.filter(Boolean).map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))));

function lane(one, unit, samples) {
  const full = Math.max(one.queue.events / one.queue.max_events, one.queue.bytes / one.queue.max_bytes);
  const meter = h("span", { class: "meter" }, h("span", {}));
  meter.firstChild.style.width = `${Math.min(100, full * 100)}%`;
  const recent = samples.slice(-60).map((each) => each.components[one.name]?.[0] ?? null);
  const act = (action) => {
    const element = button(action[0].toUpperCase() + action.slice(1), () => onComponent(one.name, action));
    element.dataset.key = `${one.name}/${action}`;
    element.setAttribute("aria-label", `${action} ${one.name}`);
    return element;
  };
  const bad = one.state === "broken" || one.breaker.state === "open";
  return h("article", { class: `lane ${bad ? "bad" : one.state === "live" ? "" : "warn"}`, "aria-label": `component ${one.name}` },
    h("div", { class: "lane-head" }, h("h3", {}, one.name), state(one.state),
      one.breaker.state !== "closed" && badge(`circuit ${one.breaker.state}`, "bad"),
      h("span", { class: "rate" }, h("b", {}, rate(one.events_per_s)), " events/s"), sparkline(recent, `rate of ${one.name} in the last five minutes`)),
    one.reason && h("p", { class: "reason" }, one.reason),
    facts([
      ["lag", one.lag_s === null ? "–" : `${seconds(one.lag_s)} · ${number(one.lag)} ${unit}`],
      ["queue", [`${number(one.queue.events)} of ${number(one.queue.max_events)} `, meter]],
      ["circuit", `${one.breaker.state}, opened ${number(one.counts.circuit_openings)}×`],
      ["retries", `${number(one.counts.failures)} failed of ${number(one.counts.attempts)}`],
      ["refreshes", `${number(one.counts.refreshes)}${one.counts.failed_refreshes ? `, ${number(one.counts.failed_refreshes)} failed` : ""}`],
      ["dropped", number(one.counts.dropped)],
    ]),
    h("div", { class: "lane-foot" },
      h("details", { open: opened.has(one.name), ontoggle: (event) => opened[event.target.open ? "add" : "delete"](one.name) },
        h("summary", {}, plural(one.tables.length, "table")), h("p", { class: "mono wrap" }, one.tables.join(", "))),
      h("div", { class: "buttons" }, one.state === "paused" ? act("resume") : [act("refresh"), act("pause")])));
}

function history(samples) {
  const names = [...new Set(samples.flatMap((one) => Object.keys(one.components)))];
  const series = (index) => names.map((name) => ({ name, values: samples.map((one) => [one.at, one.components[name]?.[index] ?? null]) }));
  return [
    lines("Events delivered per second", series(0), rate),
    lines("Lag", series(2), seconds),
    lines("Queued events", series(3), (value) => number(Math.round(value * 10) / 10)),
    lines("Failed deliveries per second", series(1), rate),
  ];
}

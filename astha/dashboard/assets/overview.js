// The path of an event as it is: registry -> source -> lanes -> components; and an hour of history.
import { h, state, badge, number, plural, bytes, rate, seconds, ago, sentence, prose, described, replace, update } from "./dom.js";
import { lines, sparkline } from "./charts.js";
import { get } from "./api.js";
import { onComponent, button } from "./actions.js";
import { link } from "./tables.js";

const STORED_MS = 5000;
const CALM_MS = 30000; // between two updates of reasons that differ in numbers only

export function overview(main, { status, onStatus, guarded }) {
  const verdict = h("section", { class: "verdict", "aria-live": "polite" });
  const path = h("section", { class: "path", "aria-label": "The path of an event" });
  const charts = h("section", { class: "charts", "aria-label": "The last hour" });
  replace(main, h("h1", {}, "Overview"), verdict, path, h("h2", {}, "The last hour"), charts);
  let samples = [];
  let drawn = 0;
  let shownVerdict = "";
  let verdictAt = 0;

  const show = (current) => {
    const facts = [current.ready, current.leadership, current.clock, current.components.map((one) => [one.problems.map(({ subject: of, reason }) => [of, calm(reason)]), one.problem_count, retries(one)])];
    const judgement = JSON.stringify([facts, current.reasons.map(calm)]);
    if (judgement !== shownVerdict || Date.now() - verdictAt > CALM_MS) { // otherwise a screen reader would read it again every second
      if (judgement !== shownVerdict || current.reasons.length || current.components.some((one) => one.problem_count)) update(verdict, health(current));
      shownVerdict = judgement;
      verdictAt = Date.now();
    }
    update(path, stages(current, samples));
    if (current.at - (samples.at(-1)?.at ?? 0) >= STORED_MS) {
      samples.push(sample(current));
      samples = samples.slice(-720);
    }
    if (Date.now() - drawn > STORED_MS || !charts.childElementCount) {
      drawn = Date.now();
      update(charts, history(samples, current));
    }
  };
  guarded(charts, async () => {
    samples = (await get("/api/history")).samples;
    drawn = 0;
    if (status()) show(status());
    else replace(charts, history(samples, null));
  });
  if (status()) show(status());
  else replace(verdict, h("p", { class: "loading" }, "Waiting for the daemon’s status…"));
  return onStatus(show);
}

const calm = (reason) => reason.replace(/\d+/g, "");

const sample = (status) => ({
  at: status.at,
  source_lag: status.source.lag,
  components: Object.fromEntries(status.components.map((one) => [one.name, [one.events_per_s, one.failures_per_s, one.lag_s, one.queue.events]])),
});

const ROLES = { "standing by": "standby", "waiting for the registry": "waiting", stopping: "stopping" };

function health(status) {
  const { leadership } = status;
  const problems = status.components.reduce((sum, one) => sum + one.problem_count, 0);
  const retrying = status.components.filter(retries).map((one) => one.name);
  const [kind, title, advice] = judged(status, ROLES[leadership.role], retrying, problems);
  return [
    h("div", { class: `headline ${kind}` }, h("strong", {}, title),
      h("span", {}, `${leadership.role}${leadership.epoch === null ? "" : `, epoch ${leadership.epoch}`} · version ${status.version}`)),
    advice && h("p", {}, prose(advice)),
    leadership.role !== "standing by" && status.reasons.length > 0 && h("ul", { class: "reasons" }, status.reasons.map((reason) => h("li", {}, prose(reason)))),
    status.clock && h("p", { class: "warn" }, status.clock),
    problems > 0 && listed(status.components.flatMap((one) => one.problems.map((problem) =>
      h("li", {}, h("strong", {}, `${one.name}: `, subject(problem.subject)), " ", described(problem)))), problems),
  ];
}

const SHOWN = 5;

const listed = (items, count) => [
  h("ul", { class: "problems" }, items.slice(0, SHOWN)),
  items.length > SHOWN && h("details", { "data-key": "problems" }, h("summary", {}, `${number(count - SHOWN)} more`),
    h("ul", {}, items.slice(SHOWN), count > items.length && h("li", {}, prose(`${number(count - items.length)} more: \`astha status\` lists them.`)))),
];

// A table's name, perhaps with a partition; or something else.
function subject(text) {
  const [name, ...rest] = text.split(" ");
  return name.includes(".") ? [link(name), rest.length ? ` ${rest.join(" ")}` : ""] : text;
}

// Returns kind, headline, and what it means and what to do.
function judged(status, role, retrying, problems) {
  if (role === "standby" && !status.leadership.leader)
    return ["warn", "No leader is known", "This daemon leads as soon as the registry lets it. Either the lease of the last leader has not run out yet, or the registry does not respond: `astha check` tests the connection."];
  if (role === "standby")
    return ["info", "This daemon stands by", `${status.leadership.leader} leads, and this one takes over when it stops. Ask that one for state, events and actions.`];
  if (role === "stopping") return ["info", "This daemon is stopping", "It delivers what is queued. The next one continues where it ended."];
  if (role === "waiting")
    return ["bad", "The registry can’t be used", "No change is delivered meanwhile, and none is lost: deliveries continue where they stopped. Start the database, or mend what is named below; Astha connects again by itself. `astha check` tests the connection."];
  if (!status.ready) return ["bad", "Not every change reaches every component", null];
  if (retrying.length) return ["warn", `${retrying.join(", ")} ${retrying.length === 1 ? "fails and is" : "fail and are"} tried again`, "Nothing is lost, and other components are not affected. Below is the reason."];
  if (problems) return ["warn", plural(problems, "problem"), "Every change reaches every component. Each problem concerns only what it names; everything else goes on."];
  return ["good", "Every change reaches every component", null];
}

const READS = { postgresql: "write-ahead log", sqlite: "change log", kafka: "another daemon, by Kafka", mqtt: "another daemon, by MQTT" };

// A URL with a socket's path in it is quoted.
function readable(url) {
  try {
    return decodeURIComponent(url);
  } catch {
    return url;
  }
}

function stages(status, samples) {
  const { source } = status;
  const role = ROLES[status.leadership.role];
  const unused = role === "standby";
  return [
    h("div", { class: `stage ${role === "waiting" ? "bad" : ""}` }, h("h2", {}, "Registry"), role === "waiting" && badge("can’t be used", "bad"), h("p", { class: "mono wrap" }, readable(status.registry))),
    h("div", { class: "arrow", "aria-hidden": "true" }),
    h("div", { class: `stage ${source.connected || unused ? "" : "bad"}` }, h("h2", {}, "Source"),
      unused ? badge("the leader reads it", "info") : source.connected ? badge("connected", "good") : badge("not connected", "bad"),
      !unused && facts([
        ["reads", READS[source.kind] || source.kind],
        ["behind the server", source.lag === null || !source.connected ? "–" : `${number(source.lag)} ${source.unit}`],
        ["received up to", number(source.received)],
        ["acknowledged", number(source.acknowledged)],
        source.retained_bytes !== null && ["retained", bytes(source.retained_bytes)],
        source.wal_status && ["WAL status", source.wal_status],
      ]),
      source.detail && !unused && role !== "waiting" && h("p", { class: "reason" }, prose(source.detail))),
    h("div", { class: "arrow", "aria-hidden": "true" }),
    h("div", { class: "lanes" }, status.components.length
      ? status.components.map((one) => (role ? idle(one) : lane(one, source.unit, samples)))
      : h("p", { class: "empty" }, prose("No component is subscribed: changes are acknowledged and discarded. Add components to `subscriptions.yaml`."))),
  ];
}

const facts = (pairs) => h("dl", {}, pairs.filter(Boolean).map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))));

const subscribed = (one) => h("details", { "data-key": `tables of ${one.name}` },
  h("summary", {}, plural(one.tables.length, "table")), h("p", { class: "mono wrap" }, one.tables.join(", ")));

// A component of a daemon that does not lead has no state of its own.
const idle = (one) => h("article", { class: "lane", "aria-label": `component ${one.name}` },
  h("div", { class: "lane-head" }, h("h3", {}, one.name), state(one.state)), h("div", { class: "lane-foot" }, subscribed(one)));

const retries = (one) => one.failure !== null && one.state === "live";

// What each state means, and what helps.
const MEANING = {
  broken: (one) => `Its circuit is open: it gets nothing${one.breaker.retry_in_s === null ? "" : `, and is tried again in ${seconds(one.breaker.retry_in_s)}`}. It owes a refresh, which brings what it misses. Refresh tries at once.`,
  held: () => "Nothing is dropped: the registry keeps what follows, and the first event is tried again and again. Other components are not affected.",
  recovering: () => "It owes a refresh: it reads the registry, then continues with what came meanwhile.",
  bootstrapping: () => "It reads the registry for the first time in this process.",
  paused: () => "It gets nothing until it is resumed; a refresh then brings what it misses.",
};

function trouble(one) {
  const { failure } = one;
  const meaning = MEANING[one.state];
  return [
    one.reason && h("p", { class: "reason" }, prose(sentence(one.reason))),
    failure && !(one.reason || "").includes(failure.hint) && h("p", { class: "reason" }, `${failure.call === "refresh" ? "Refresh" : "Delivery"} failed: ${sentence(failure.error)} `, prose(sentence(failure.hint))),
    failure && (retries(one) || failure.next_try_s !== null) && h("p", { class: "hint" }, `Attempt ${number(failure.attempt)} of ${number(failure.attempts)} failed ${ago(failure.at)}; the next one is ${failure.next_try_s === null ? "under way" : `in ${seconds(failure.next_try_s)}`}.${retries(one) ? " After the last one the event is dropped, and a refresh brings what it contained." : ""}`),
    meaning && h("p", { class: "hint" }, meaning(one)),
  ];
}

function lane(one, unit, samples) {
  const full = Math.max(one.queue.events / one.queue.max_events, one.queue.bytes / one.queue.max_bytes);
  const meter = h("span", { class: "meter" }, h("span", {}));
  meter.firstChild.style.width = `${Math.min(100, full * 100)}%`;
  const recent = samples.slice(-60).map((each) => each.components[one.name]?.[0] ?? null);
  const act = (action) => {
    const element = button(action[0].toUpperCase() + action.slice(1), () => onComponent(one.name, action));
    element.setAttribute("aria-label", `${action} ${one.name}`);
    return element;
  };
  const bad = one.state === "broken" || one.breaker.state === "open";
  const warned = one.state !== "live" || one.failure !== null || one.problem_count > 0;
  return h("article", { class: `lane ${bad ? "bad" : warned ? "warn" : ""}`, "aria-label": `component ${one.name}` },
    h("div", { class: "lane-head" }, h("h3", {}, one.name), state(one.state), retries(one) && state("retrying"),
      one.breaker.state !== "closed" && badge(`circuit ${one.breaker.state}`, "bad"),
      MEANING[one.state] && one.state !== "held" && badge("refresh owed", "warn"),
      one.problem_count > 0 && badge(plural(one.problem_count, "problem"), "warn"),
      h("span", { class: "rate" }, h("b", {}, rate(one.events_per_s)), " events/s"), sparkline(recent, `rate of ${one.name} in the last five minutes`)),
    trouble(one),
    facts([
      ["lag", one.lag_s === null ? "–" : `${seconds(one.lag_s)}${one.lag === null ? "" : ` · ${number(one.lag)} ${unit}`}`],
      ["queue", [`${number(one.queue.events)} of ${number(one.queue.max_events)} `, meter]],
      ["circuit", `${one.breaker.state}, opened ${number(one.counts.circuit_openings)}×`],
      ["retries", `${number(one.counts.failures)} failed of ${number(one.counts.attempts)}`],
      ["refreshes", `${number(one.counts.refreshes)}${one.counts.failed_refreshes ? `, ${number(one.counts.failed_refreshes)} failed` : ""}`],
      ["dropped", number(one.counts.dropped)],
    ]),
    h("div", { class: "lane-foot" }, subscribed(one),
      h("div", { class: "buttons" }, one.state === "paused" ? act("resume") : [act("refresh"), act("pause")])));
}

function history(samples, status) {
  if (status?.leadership.role === "standing by") return [h("p", { class: "empty" }, "The leader has the history: a standby delivers nothing.")];
  const names = [...new Set(samples.flatMap((one) => Object.keys(one.components)))];
  const series = (index) => names.map((name) => ({ name, values: samples.map((one) => [one.at, one.components[name]?.[index] ?? null]) }));
  return [
    lines("Events delivered per second", series(0), rate),
    lines("Lag", series(2), seconds),
    lines("Queued events", series(3), (value) => number(Math.round(value * 10) / 10)),
    lines("Failed deliveries per second", series(1), rate),
  ];
}

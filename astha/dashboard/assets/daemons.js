// Every daemon of the registry, by group: leader, standbys, followers.
import { h, table, state, badge, number, when, replace, update } from "./dom.js";
import { get } from "./api.js";

export function daemons(main, { guarded, every, status }) {
  const content = h("div", {});
  replace(main, h("h1", {}, "Daemons"), content);
  const load = () => guarded(content, async () => {
    const { groups } = await get("/api/daemons");
    const self = status()?.leadership.holder;
    const unit = status()?.source.unit === "bytes" ? "bytes of WAL" : "changes";
    update(content, groups.length ? groups.map((group) => [
      h("h2", {}, `Group ${group.name}`),
      table(`Daemons of ${group.name}`, [
        ["Daemon", (row) => [row.holder, " ", row.holder === self && badge("this one", "info")].filter(Boolean)],
        ["Role", (row) => (row.gone ? badge(`gone, was ${row.role}`, "bad") : state(row.role))],
        ["Source", (row) => (["kafka", "mqtt"].includes(row.source) ? `${row.source} (follower)` : row.source)],
        ["Components", (row) => row.components.join(", ") || "none"], ["Version", (row) => row.version],
        ["Started", (row) => when(row.started_at)], ["Seen", (row) => when(row.seen_at)],
      ], group.daemons, "No daemon of this group runs; the ledger remembers its components."),
      table(`Components of ${group.name}, from the ledger`, [
        ["Component", (row) => row.name], ["State", (row) => (row.running ? state(row.state) : badge(`not running, was ${row.state}`, "warn"))],
        ["Refresh owed", (row) => (row.refresh_owed ? "yes" : "no")], [`Lag (${unit})`, (row) => number(row.lag), "n"],
        ["Updated", (row) => when(row.updated_at)], ["Reason", (row) => row.reason || ""],
      ], group.components, "No component is in the ledger."),
    ]) : h("p", { class: "empty" }, "No daemon is recorded in the registry."));
  });
  load();
  return every(5000, load);
}

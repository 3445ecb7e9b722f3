// Topics with partitions, consumer groups and lag.
import { h, table, number, plural, when, seconds, replace, update } from "./dom.js";
import { get } from "./api.js";
import { paged } from "./pages.js";

export function topics(main, context) {
  const results = h("div", {});
  const count = h("p", { class: "count", role: "status" });
  const search = h("input", { type: "search", id: "search", autocomplete: "off" });
  replace(main, h("h1", {}, "Topics"), h("form", { class: "filters", role: "search", onsubmit: (event) => event.preventDefault() }, h("label", { for: "search" }, "Search", search)), count, results);
  const read = (after, signal) => get("/api/topics", { search: search.value, after, limit: 50 }, signal);
  const list = paged(results, context, read, (page) => {
    const text = page.total ? plural(page.total, "topic") : "";
    if (count.textContent !== text) count.textContent = text;
    return table("Topics", [
      ["Topic", (row) => h("a", { href: `#/topics/${encodeURIComponent(row.name)}` }, row.name)],
      ["Partitions", (row) => number(row.partition_count), "n"],
      ["Retention", (row) => (row.retention_ms === null ? "forever" : seconds(row.retention_ms / 1000))],
      ["Created", (row) => when(row.created_at)],
    ], page.topics, search.value ? `No topic’s name contains “${search.value}”.` : "There are no topics yet. This makes one: `astha topics create clicks --partitions 3`");
  });
  search.addEventListener("input", list.restart(200));
  return list.leave;
}

export function oneTopic(main, { guarded, every }, name) {
  const content = h("div", {});
  replace(main, h("p", { class: "crumbs" }, h("a", { href: "#/topics" }, "Topics"), " / "), h("h1", {}, name), content);
  const load = () => guarded(content, async () => {
    const found = await get(`/api/topics/${encodeURIComponent(name)}`);
    update(content, h("h2", {}, "Consumer groups"),
      table("Consumer groups", [
        ["Group", (row) => row.group], ["Lag (records)", (row) => number(row.lag), "n"],
        ["Partitions", (row) => number(Object.keys(row.partitions).length), "n"], ["Committed", (row) => when(row.committed_at)],
      ], found.groups, "No group has committed offsets of this topic."),
      h("h2", {}, "Partitions"),
      table("Partitions", [
        ["Partition", (row) => number(row.partition)], ["Next offset", (row) => number(row.end), "n"], ["Agent", (row) => row.agent || "none holds the lease"],
        ...found.groups.slice(0, 4).map((group) => [`Lag of ${group.group}`, (row) => (group.partitions[row.partition] === undefined ? "–" : number(Math.max(0, row.end - group.partitions[row.partition]))), "n"]),
      ], found.partitions, "No partitions."));
  });
  load();
  return every(5000, load);
}

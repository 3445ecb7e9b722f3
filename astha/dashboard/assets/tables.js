// Tables, searched and paged by the daemon; and one table with its files, snapshots and decisions.
import { h, table, number, plural, bytes, when, state, badge, sentence, prose, described, replace, update } from "./dom.js";
import { bars, timeline } from "./charts.js";
import { get } from "./api.js";
import { paged } from "./pages.js";
import { button, compact, cancel, snapshot, rollback } from "./actions.js";
import { decisions } from "./compaction.js";

export const nameOf = (row) => `${row.database}.${row.name}`;
export const link = (name) => h("a", { href: `#/tables/${encodeURIComponent(name)}` }, name);

const SIZE = 50;

export function tables(main, context) {
  const results = h("div", {});
  const count = h("p", { class: "count", role: "status" });
  const search = h("input", { type: "search", id: "search", placeholder: "database.table", autocomplete: "off" });
  const order = h("select", { id: "order" }, [["name", "name"], ["files", "most files"], ["size", "largest"], ["rows", "most rows"], ["modified", "last modified"]]
    .map(([value, text]) => h("option", { value }, text)));
  replace(main, h("h1", {}, "Tables"),
    h("form", { class: "filters", role: "search", onsubmit: (event) => event.preventDefault() },
      h("label", { for: "search" }, "Search", search), h("label", { for: "order" }, "Order", order)), count, results);
  const read = (after, signal) => get("/api/tables", { search: search.value, order: order.value, after: after && JSON.stringify(after), limit: SIZE }, signal);
  const list = paged(results, context, read, (page, at) => {
    const text = page.tables.length ? `${number(at * SIZE + 1)}–${number(at * SIZE + page.tables.length)} of ${number(page.total)}` : "";
    if (count.textContent !== text) count.textContent = text;
    return table("Tables", [
      ["Table", (row) => link(nameOf(row))],
      ["Rows", (row) => number(row.row_count), "n"], ["Files", (row) => number(row.file_count), "n"],
      ["Size", (row) => bytes(row.total_size), "n"],
      ["Mean file", (row) => (row.file_count ? bytes(row.total_size / row.file_count) : "–"), "n"],
      ["Modified", (row) => when(row.last_modified)], ["State", (row) => state(row.status)],
    ], page.tables, search.value ? `No table’s name contains “${search.value}”.` : "There are no tables yet. This makes one: `astha tables create shop.orders --column id:long!`");
  });
  search.addEventListener("input", list.restart(200));
  order.addEventListener("change", list.restart(0));
  return list.leave;
}

const FRESH_MS = 5000;

export function oneTable(main, { guarded, every, status }, name) {
  const content = h("div", {});
  replace(main, h("p", { class: "crumbs" }, h("a", { href: "#/tables" }, "Tables"), " / "), h("h1", {}, name), content);
  let explanation = null;
  let explained = "";
  const load = () => guarded(content, async () => {
    const found = await get(`/api/tables/${encodeURIComponent(name)}`);
    const state = JSON.stringify([found.table.last_modified, found.table.file_count, found.compactions[0]]);
    if (state !== explained) { // it reads the rows of all files
      explanation = await get(`/api/tables/${encodeURIComponent(name)}/explain`).catch((error) => ({ error: error.message }));
      explained = state;
    }
    update(content, problems(name, status()), page(name, found, explanation));
  });
  load();
  const later = () => setTimeout(load, 800);
  addEventListener("astha-changed", later);
  const stop = every(FRESH_MS, load);
  return () => {
    stop();
    removeEventListener("astha-changed", later);
  };
}

// What components report of this table, or of one of its partitions.
const problems = (name, status) => (status?.components ?? []).flatMap((one) => one.problems
  .filter(({ subject }) => subject === name || subject.startsWith(`${name} `))
  .map((problem) => h("div", { class: "error warned" }, h("strong", {}, one.name), ": ", described(problem))));

function page(name, found, explanation) {
  const { table: row, metadata } = found;
  return [
    h("div", { class: "buttons" }, button("Compact", () => compact(name)), button("Cancel compactions", () => cancel(name)),
      button("Snapshot", () => snapshot(name))),
    h("dl", { class: "facts" }, [["rows", number(row.row_count)], ["files", number(row.file_count)], ["size", bytes(row.total_size)],
      ["modified", when(row.last_modified)], ["location", h("span", { class: "mono wrap" }, row.location)],
      metadata && ["format", `${metadata.format}, ${metadata.compression}, schema version ${metadata.schema_version}`],
      found.savings && ["saved by compaction", `${plural(found.savings.input_files - found.savings.output_files, "file")} in ${plural(found.savings.compactions, "compaction")}`],
    ].filter(Boolean).map(([title, value]) => h("div", {}, h("dt", {}, title), h("dd", {}, value)))),
    sizes(found),
    h("h2", {}, "Snapshots"), snapshots(name, found.snapshots),
    h("h2", {}, "What compaction decides now"), explained(explanation),
    h("h2", {}, "Last decisions"), decisions("Last decisions", found.compactions, false),
    metadata && h("details", { "data-key": "schema" }, h("summary", {}, "Schema and properties"), h("pre", { tabindex: 0 }, JSON.stringify({ schema: metadata.schema, partition_by: metadata.partition_by, sort_by: metadata.sort_by, properties: metadata.properties }, null, 2))),
  ];
}

function sizes(found) {
  const now = (bound, compacted) => found.sizes.filter((one) => one.from_bytes === bound && (compacted === undefined || one.compacted === compacted)).reduce((sum, one) => sum + one.files, 0);
  const { merged } = found;
  const replaced = (bound) => merged.files.find((one) => one.from_bytes === bound)?.files ?? 0;
  const groups = found.size_bounds.map((bound, index) => ({
    label: bound ? `${index === found.size_bounds.length - 1 ? "≥ " : ""}${bytes(bound)}` : `< ${bytes(found.size_bounds[1])}`,
    values: [replaced(bound) + now(bound, false), now(bound)],
  }));
  return [bars("Files by size, before and after compaction", ["before", "now"], groups),
    h("p", { class: "note" }, ["Each class begins at the size below its bars. Before: today’s files, with the files that compactions merged in place of their results.",
      merged.missing > 0 && `${plural(merged.missing, "result")} of compactions ${merged.missing === 1 ? "is" : "are"} in the table no more; the files merged into ${merged.missing === 1 ? "it" : "them"} still count.`,
      merged.estimated > 0 && `${plural(merged.estimated, "merged file")} of compactions without recorded sizes ${merged.estimated === 1 ? "counts" : "count"} at the mean size of the compaction’s inputs.`,
      merged.more && `Only the last ${number(merged.compactions)} compactions are counted.`].filter(Boolean).join(" "))];
}

function snapshots(name, rows) {
  if (!rows.length) return h("p", { class: "empty" }, prose("No snapshots yet. The button above requests one; `snapshot.every` in the table’s properties makes them by time."));
  const shown = rows.filter((row) => row.status === "created" || row.status === "requested");
  return [
    shown.length > 0 && timeline("Snapshots and tags", shown.map((row) => ({ at: row.timestamp, label: row.tag, kind: row.status }))),
    table("Snapshots", [
      ["Tag", (row) => row.tag || "–"], ["State", (row) => state(row.status)], ["Made", (row) => when(row.timestamp)],
      ["By", (row) => row.trigger], ["Snapshot", (row) => h("span", { class: "mono" }, row.snapshot_id || "–")], ["Reason", (row) => row.reason || ""],
      ["", (row) => (row.status === "created" ? h("button", { type: "button", "aria-label": `Roll back to ${row.tag || row.snapshot_id}`, onclick: () => rollback(name, row.snapshot_id, row.tag) }, "Roll back") : "")],
    ], [...rows].reverse().slice(0, 50), ""),
  ];
}

function explained(explanation) {
  if (explanation.error) return h("p", { class: "empty" }, prose(sentence(explanation.error)));
  return [
    explanation.problem && h("p", { class: "warn" }, prose(explanation.problem)),
    table("Partitions", [
      ["Partition", (row) => row.partition || "(whole table)"], ["State", (row) => state(row.status)],
      ["Why", (row) => [row.rule, row.reason].filter(Boolean).join(": ")],
      ["Files", (row) => number(row.files), "n"], ["Small", (row) => number(row.small_files), "n"],
      ["To merge", (row) => number(row.to_merge), "n"], ["Rewritten", (row) => bytes(row.bytes_to_rewrite), "n"], ["Score", (row) => number(row.score), "n"],
    ], explanation.partitions, "No files yet: nothing to decide."),
    explanation.partition_count > explanation.partitions.length && h("p", {}, badge(`${number(explanation.partition_count)} partitions; the first ${number(explanation.partitions.length)} are shown`)),
  ];
}

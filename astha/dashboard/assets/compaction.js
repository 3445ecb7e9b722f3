// Decisions of the compactor with their explanations, and running jobs with their progress.
import { h, table, number, bytes, seconds, when, state, replace } from "./dom.js";
import { get } from "./api.js";
import { button, cancel } from "./actions.js";
import { link } from "./tables.js";

const STATUSES = ["waiting", "declined", "running", "done", "aborted", "failed", "cancelled"];

export function decisions(caption, rows, withTable = true) {
  return table(caption, [
    ...(withTable ? [["Table", (row) => link(row.table_name)]] : []),
    ["Partition", (row) => row.partition_path || "(whole table)"],
    ["State", (row) => state(row.status)],
    ["Why", (row) => [[row.rule, row.reason].filter(Boolean).join(": "), h("details", {}, h("summary", {}, "explanation"), h("pre", { tabindex: 0 }, JSON.stringify(row.explanation, null, 2)))]],
    ["Files", (row) => (row.status === "done" ? `${number(row.input_files)} → ${number(row.output_files)}` : number(row.input_files)), "n"],
    ["Bytes", (row) => bytes(row.input_bytes), "n"],
    ["Decided", (row) => when(row.decided_at)],
  ], rows, "No decisions yet: the compactor decides when small files are added.");
}

export function compaction(main, { guarded, every }) {
  const running = h("section", { "aria-label": "Running jobs", "aria-live": "polite" });
  const results = h("div", {});
  const status = h("select", { id: "status" }, h("option", { value: "" }, "all"), STATUSES.map((one) => h("option", { value: one }, one)));
  replace(main, h("h1", {}, "Compaction"), h("h2", {}, "Running"), running, h("h2", {}, "Decisions"),
    h("form", { class: "filters", onsubmit: (event) => event.preventDefault() }, h("label", { for: "status" }, "State", status)), results);
  let pages = [null];
  const load = () => guarded(results, async () => {
    const after = pages.at(-1);
    const page = await get("/api/compactions", { status: status.value, after: after && JSON.stringify(after), limit: 50 });
    replace(results, decisions("Decisions, newest first", page.compactions),
      h("div", { class: "pager" },
        h("button", { type: "button", disabled: pages.length === 1, onclick: () => { pages.pop(); load(); } }, "Newer"),
        h("button", { type: "button", disabled: !page.after, onclick: () => { pages.push(page.after); load(); } }, "Older")));
    return page;
  });
  const progress = () => guarded(running, async () => {
    const page = await get("/api/compactions", { limit: 1 });
    const { jobs } = page.running.length ? await get("/api/progress").catch(() => ({ jobs: [] })) : { jobs: [] };
    replace(running, page.running.length ? page.running.map((row) => job(row, jobs.find((one) => one.operation_id === row.operation_id)))
      : h("p", { class: "empty" }, "No compaction is running."));
  });
  status.addEventListener("change", () => { pages = [null]; load(); });
  load();
  progress();
  return every(2000, progress);
}

function job(row, known) {
  const share = known && known.bytes_total ? Math.min(1, known.bytes_done / known.bytes_total) : null;
  const label = `${row.table_name} ${row.partition_path}`.trim();
  return h("article", { class: "job" },
    h("div", { class: "lane-head" }, h("h3", {}, link(row.table_name)), h("span", {}, row.partition_path || "(whole table)"),
      row.cancel_requested ? state("cancelling") : null, button("Cancel", () => cancel(row.table_name, row.partition_path))),
    h("progress", share === null ? { "aria-label": label } : { max: 1, value: share, "aria-label": label }),
    h("p", {}, known ? `${bytes(known.bytes_done)} of ${bytes(known.bytes_total)}, ${known.groups_done} of ${known.groups} groups, for ${seconds(known.running_s)}`
      : `${number(row.input_files)} files, ${bytes(row.input_bytes)}, by ${row.owner}`));
}

// Decisions of the compactor with their explanations, and running jobs with their progress.
import { h, table, number, plural, bytes, seconds, when, state, replace, update } from "./dom.js";
import { get } from "./api.js";
import { button, cancel } from "./actions.js";
import { link } from "./tables.js";

const STATUSES = ["waiting", "declined", "running", "done", "aborted", "failed", "cancelled"];

export function decisions(caption, rows, withTable = true) {
  return table(caption, [
    ...(withTable ? [["Table", (row) => link(row.table_name)]] : []),
    ["Partition", (row) => row.partition_path || "(whole table)"],
    ["State", (row) => state(row.status)],
    ["Why", (row) => [[row.rule, row.reason].filter(Boolean).join(": "), h("details", { "data-key": `explanation ${row.id}` }, h("summary", {}, "explanation"), h("pre", { tabindex: 0 }, JSON.stringify(row.explanation, null, 2)))]],
    ["Files", (row) => (row.status === "done" ? `${number(row.input_files)} → ${number(row.output_files)}` : number(row.input_files)), "n"],
    ["Bytes", (row) => bytes(row.input_bytes), "n"],
    ["Decided", (row) => when(row.decided_at)],
  ], rows, "No decisions yet: the compactor decides when small files are added.");
}

export function compaction(main, { guarded, every }) {
  const announced = h("p", { class: "quiet", role: "status" }); // the jobs themselves are drawn again every two seconds
  const running = h("section", { "aria-label": "Running jobs" });
  const results = h("div", {});
  const status = h("select", { id: "status" }, h("option", { value: "" }, "all"), STATUSES.map((one) => h("option", { value: one }, one)));
  replace(main, h("h1", {}, "Compaction"), h("h2", {}, "Running"), announced, running, h("h2", {}, "Decisions"),
    h("form", { class: "filters", onsubmit: (event) => event.preventDefault() }, h("label", { for: "status" }, "State", status)), results);
  let pages = [null];
  const load = () => guarded(results, async () => {
    const after = pages.at(-1);
    const page = await get("/api/compactions", { status: status.value, after: after && JSON.stringify(after), limit: 50 });
    update(results, decisions("Decisions, newest first", page.compactions),
      h("div", { class: "pager" },
        h("button", { type: "button", disabled: pages.length === 1, onclick: () => { pages.pop(); load(); } }, "Newer"),
        h("button", { type: "button", disabled: !page.after, onclick: () => { pages.push(page.after); load(); } }, "Older")));
    return page;
  });
  let shown = null;
  const progress = () => guarded(running, async () => {
    const page = await get("/api/compactions", { limit: 1 });
    const { jobs } = page.running.length ? await get("/api/progress").catch(() => ({ jobs: [] })) : { jobs: [] };
    const ids = page.running.map((row) => row.operation_id).join();
    if (shown !== null && ids !== shown) load(); // one has begun or ended
    shown = ids;
    const text = page.running.length ? `${plural(page.running.length, "compaction")} running.` : "No compaction is running.";
    if (announced.textContent !== text) announced.textContent = text;
    update(running, page.running.length ? page.running.map((row) => job(row, jobs.find((one) => one.operation_id === row.operation_id)))
      : h("p", { class: "empty" }, "Nothing runs. The compactor begins by itself when a partition has enough small files; a table’s page has a button that begins at once."));
  });
  status.addEventListener("change", () => { pages = [null]; load(); });
  load();
  progress();
  const later = () => setTimeout(() => { load(); progress(); }, 800);
  addEventListener("astha-changed", later);
  const stop = every(2000, progress);
  return () => {
    stop();
    removeEventListener("astha-changed", later);
  };
}

// Bytes count when a group of files is merged and swapped: before the first one, the bar only moves.
function job(row, known) {
  const share = known?.bytes_done ? Math.min(1, known.bytes_done / known.bytes_total) : null;
  const label = `${row.table_name} ${row.partition_path}`.trim();
  const cancelButton = button("Cancel", () => cancel(row.table_name, row.partition_path));
  cancelButton.setAttribute("aria-label", `Cancel the compaction of ${label}`);
  const since = known ? known.running_s : (Date.now() - row.started_at) / 1000;
  return h("article", { class: "job", "aria-label": `Compaction of ${label}` },
    h("div", { class: "lane-head" }, h("h3", {}, link(row.table_name)), h("span", {}, row.partition_path || "(whole table)"),
      row.cancel_requested ? state("cancelling") : cancelButton),
    h("progress", share === null ? { "aria-label": `Progress of ${label}` } : { max: 1, value: share, "aria-label": `Progress of ${label}` }),
    h("p", {}, known?.bytes_done ? `${Math.round(share * 100)} %: ${bytes(known.bytes_done)} of ${bytes(known.bytes_total)}, ${known.groups_done} of ${plural(known.groups, "group")}, for ${seconds(since)}`
      : `${number(row.input_files)} files, ${bytes(row.input_bytes)}${known ? ` in ${plural(known.groups, "group")}` : `, by ${row.owner}`}, for ${seconds(since)}`));
}

// Decisions of the compactor with their explanations, and running jobs with their progress.
import { h, table, number, plural, bytes, seconds, when, state, replace, update } from "./dom.js";
import { get } from "./api.js";
import { paged } from "./pages.js";
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

export function compaction(main, context) {
  const { guarded, every } = context;
  const announced = h("p", { class: "quiet", role: "status" }); // the jobs themselves are drawn again every two seconds
  const running = h("section", { "aria-label": "Running jobs" });
  const results = h("div", {});
  const status = h("select", { id: "status" }, h("option", { value: "" }, "all"), STATUSES.map((one) => h("option", { value: one }, one)));
  replace(main, h("h1", {}, "Compaction"), h("h2", {}, "Running"), announced, running, h("h2", {}, "Decisions"),
    h("form", { class: "filters", onsubmit: (event) => event.preventDefault() }, h("label", { for: "status" }, "State", status)), results);
  const read = (after, signal) => get("/api/compactions", { status: status.value, after: after && JSON.stringify(after), limit: 50 }, signal);
  const list = paged(results, context, read, (page) => decisions("Decisions, newest first", page.compactions), ["Newer", "Older"]);
  let shown = null;
  const progress = () => guarded(running, async () => {
    const page = await get("/api/compactions", { limit: 1 });
    const { jobs, session } = page.running.length ? await get("/api/progress").catch(() => ({ jobs: [] })) : { jobs: [] };
    const ids = page.running.map((row) => row.operation_id).join();
    if (shown !== null && ids !== shown) list.load(); // one has begun or ended
    shown = ids;
    const text = page.running.length ? `${plural(page.running.length, "compaction")} running.` : "No compaction is running.";
    if (announced.textContent !== text) announced.textContent = text;
    update(running, page.running.length ? page.running.map((row) => job(row, jobs.find((one) => one.operation_id === row.operation_id), session))
      : h("p", { class: "empty" }, "Nothing runs. The compactor begins by itself when a partition has enough small files; a table’s page has a button that begins at once."));
  });
  status.addEventListener("change", list.restart(0));
  progress();
  const later = () => setTimeout(() => { list.load(); progress(); }, 800);
  addEventListener("astha-changed", later);
  const stop = every(2000, progress);
  return () => {
    stop();
    list.leave();
    removeEventListener("astha-changed", later);
  };
}

// Bytes count when a group of files is merged and swapped: before the first one, the bar only moves.
function job(row, known, session) {
  const share = known?.bytes_done ? Math.min(1, known.bytes_done / known.bytes_total) : null;
  const label = `${row.table_name} ${row.partition_path}`.trim();
  const cancelButton = button("Cancel", () => cancel(row.table_name, row.partition_path));
  cancelButton.setAttribute("aria-label", `Cancel the compaction of ${label}`);
  const since = seconds(known ? known.running_s : (Date.now() - row.started_at) / 1000);
  return h("article", { class: "job", "aria-label": `Compaction of ${label}` },
    h("div", { class: "lane-head" }, h("h3", {}, link(row.table_name)), h("span", {}, row.partition_path || "(whole table)"),
      row.cancel_requested ? state("cancelling") : cancelButton),
    h("progress", share === null ? { "aria-label": `Progress of ${label}` } : { max: 1, value: share, "aria-label": `Progress of ${label}` }),
    h("p", {}, [
      share === null ? `${plural(row.input_files, "file")}, ${bytes(row.input_bytes)}${known ? ` in ${plural(known.groups, "group")}` : ""}`
        : `${Math.floor(share * 100)} %: ${bytes(known.bytes_done)} of ${bytes(known.bytes_total)}, ${number(known.groups_done)} of ${plural(known.groups, "group")}`,
      known ? tasks(known, session) : `runs in another process (${row.owner}), which alone knows its progress`,
      `for ${since}`,
      known?.remaining_s > 0 && `about ${seconds(known.remaining_s)} left`,
    ].filter(Boolean).join(" · ")));
}

function tasks({ merging, waiting }, session) {
  if (session === false) return "Spark starts";
  return [merging > 0 && `${plural(merging, "task")} in Spark’s workers`, waiting > 0 && `${plural(waiting, "task")} waiting for a free core`].filter(Boolean).join(", ");
}

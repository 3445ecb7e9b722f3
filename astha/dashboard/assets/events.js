// Events as they pass through the daemon, with a filter; the last 500 are kept in the page.
import { h, replace, number, badge } from "./dom.js";
import { follow } from "./api.js";

const KEPT = 500;

export function events(main, { status }) {
  const list = h("ol", { class: "events", "aria-label": "Events, newest first", tabindex: 0 });
  const count = h("p", { class: "count", role: "status" }, "Waiting for events…");
  const tables = [...new Set((status()?.components ?? []).flatMap((one) => one.tables))].sort();
  const table = h("select", { id: "table" }, h("option", { value: "" }, "all tables"), tables.map((one) => h("option", { value: one }, one)));
  const component = h("select", { id: "component" }, h("option", { value: "" }, "all components"), (status()?.components ?? []).map((one) => h("option", { value: one.name }, one.name)));
  const text = h("input", { type: "search", id: "text", autocomplete: "off", placeholder: "any text in the event" });
  const pause = h("button", { type: "button", "aria-pressed": "false" }, "Pause");
  replace(main, h("h1", {}, "Events"),
    h("form", { class: "filters", onsubmit: (event) => event.preventDefault() }, h("label", { for: "table" }, "Table", table),
      h("label", { for: "component" }, "Component", component), h("label", { for: "text" }, "Contains", text), pause), count, list);
  let seen = 0;
  let missed = 0;
  let stop = new AbortController();
  let ended = false;
  const show = (event) => {
    if (event.missed) missed += event.missed;
    else {
      seen += 1;
      if (pause.getAttribute("aria-pressed") === "true") return;
      const whole = JSON.stringify(event.data);
      if (text.value && !`${event.table} ${event.operation} ${whole}`.toLowerCase().includes(text.value.toLowerCase())) return;
      list.prepend(h("li", {}, h("details", {}, h("summary", {},
        badge(event.operation, { insert: "good", delete: "bad" }[event.operation.toLowerCase()] || "info"), h("b", {}, event.table), h("span", { class: "mono" }, `@${event.position}`), h("span", { class: "mono cut" }, whole)),
      h("pre", { tabindex: 0 }, JSON.stringify(event, null, 2)))));
      while (list.childElementCount > KEPT) list.lastChild.remove();
    }
    count.textContent = `${number(seen)} events${missed ? `, ${number(missed)} missed because they came too fast` : ""}`;
  };
  const start = async () => {
    stop.abort();
    stop = new AbortController();
    const { signal } = stop;
    while (!signal.aborted && !ended) {
      try {
        await follow({ table: table.value, component: component.value }, show, signal);
      } catch (error) {
        if (signal.aborted) return;
        count.textContent = `${error.message} Trying again…`;
      }
      await new Promise((resolve) => setTimeout(resolve, 1500));
    }
  };
  pause.addEventListener("click", () => {
    const on = pause.getAttribute("aria-pressed") !== "true";
    pause.setAttribute("aria-pressed", String(on));
    pause.textContent = on ? "Continue" : "Pause";
  });
  for (const select of [table, component]) select.addEventListener("change", () => { list.replaceChildren(); start(); });
  start();
  return () => {
    ended = true;
    stop.abort();
  };
}

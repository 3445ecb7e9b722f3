// Events as they pass through the daemon, with a filter; the last 500 are kept in the page.
import { h, replace, number, sentence, badge } from "./dom.js";
import { follow } from "./api.js";

const KEPT = 500;

const QUIET_MS = 1000;

export function events(main, { status, onStatus }) {
  const list = h("ol", { class: "events", "aria-label": "Events, newest first", tabindex: 0 });
  const count = h("p", { class: "count", role: "status" }, "Waiting for events…");
  const table = h("select", { id: "table" }, h("option", { value: "" }, "all tables"));
  const component = h("select", { id: "component" }, h("option", { value: "" }, "all components"));
  const offer = (current) => { // the status may come later than this page
    if (component.options.length > 1) return;
    component.append(...current.components.map((one) => h("option", { value: one.name }, one.name)));
    table.append(...[...new Set(current.components.flatMap((one) => one.tables))].sort().map((one) => h("option", { value: one }, one)));
  };
  if (status()) offer(status());
  const forget = onStatus(offer);
  const text = h("input", { type: "search", id: "text", autocomplete: "off", placeholder: "any text in the event" });
  const pause = h("button", { type: "button", "aria-pressed": "false" }, "Pause");
  replace(main, h("h1", {}, "Events"),
    h("form", { class: "filters", onsubmit: (event) => event.preventDefault() }, h("label", { for: "table" }, "Table", table),
      h("label", { for: "component" }, "Component", component), h("label", { for: "text" }, "Contains", text), pause), count, list);
  let seen = 0;
  let missed = 0;
  let stop = new AbortController();
  let ended = false;
  let counting = 0;
  const tell = () => {
    counting = 0;
    const left = list.querySelectorAll("li:not([hidden])").length;
    const filtered = text.value ? `, ${number(left)} of the last ${number(list.childElementCount)} contain “${text.value}”` : "";
    count.textContent = seen || missed ? `${number(seen)} ${seen === 1 ? "event" : "events"}${missed ? `, ${number(missed)} missed because they came too fast` : ""}${filtered}` : "Waiting for events…";
  };
  const later = () => { counting ||= setTimeout(tell, QUIET_MS); }; // a screen reader would read each one
  const matches = (item) => item.dataset.text.includes(text.value.toLowerCase());
  const show = (event) => {
    if (event.missed) missed += event.missed;
    else {
      seen += 1;
      later();
      if (pause.getAttribute("aria-pressed") === "true") return;
      const whole = JSON.stringify(event.data);
      const item = h("li", { "data-text": `${event.table} ${event.operation} ${whole}`.toLowerCase() }, h("details", {}, h("summary", {},
        badge(event.operation, { insert: "good", delete: "bad" }[event.operation.toLowerCase()] || "info"), h("b", {}, event.table), h("span", { class: "mono" }, `@${event.position}`), h("span", { class: "mono cut" }, whole)),
        h("pre", { tabindex: 0 }, JSON.stringify(event, null, 2))));
      item.hidden = !matches(item);
      list.prepend(item);
      while (list.childElementCount > KEPT) list.lastChild.remove();
    }
    later();
  };
  text.addEventListener("input", () => {
    for (const item of list.children) item.hidden = !matches(item);
    later();
  });
  const start = async () => {
    stop.abort();
    stop = new AbortController();
    const { signal } = stop;
    while (!signal.aborted && !ended) {
      try {
        await follow({ table: table.value, component: component.value }, show, signal);
      } catch (error) {
        if (signal.aborted) return;
        const said = sentence(error.message);
        if (!count.textContent.startsWith(said)) count.textContent = `${said} Tried again until it works.`;
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
    forget();
    clearTimeout(counting);
    stop.abort();
  };
}

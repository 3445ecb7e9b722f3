// The router: one screen per address, the live status for all of them, and the states that help when something is wrong.
import { h, replace } from "./dom.js";
import { live, takeTokenFromAddress } from "./api.js";
import { askToken } from "./actions.js";
import { overview } from "./overview.js";
import { tables, oneTable } from "./tables.js";
import { compaction } from "./compaction.js";
import { topics, oneTopic } from "./topics.js";
import { events } from "./events.js";
import { daemons } from "./daemons.js";

const SCREENS = [
  ["", "Overview", overview], ["tables", "Tables", tables, oneTable], ["compaction", "Compaction", compaction],
  ["topics", "Topics", topics, oneTopic], ["events", "Events", events], ["daemons", "Daemons", daemons],
];

const main = document.getElementById("main");
const connection = document.getElementById("connection");
let status = null;
let watchers = new Set();
let leave = null;

const context = {
  status: () => status,
  onStatus: (show) => {
    watchers.add(show);
    return () => watchers.delete(show);
  },
  every: (ms, work) => {
    const timer = setInterval(() => document.visibilityState === "visible" && work(), ms);
    return () => clearInterval(timer);
  },
  // Runs work; if it fails, shows the reason and a button to try again.
  guarded: async (element, work) => {
    element.setAttribute("aria-busy", "true");
    if (!element.childElementCount) replace(element, h("p", { class: "loading" }, "Loading…"));
    try {
      await work();
    } catch (error) {
      if (error.name === "AbortError") return;
      const denied = error.status === 401 || error.status === 403;
      replace(element, h("div", { class: "error", role: "alert" }, h("p", {}, error.message),
        h("button", { type: "button", onclick: async () => { if (!denied || (await askToken())) context.guarded(element, work); } }, denied ? "Enter a token" : "Try again")));
    } finally {
      element.removeAttribute("aria-busy");
    }
  },
};

function route(event) {
  const [, screen = "", name] = location.hash.split("/");
  const found = SCREENS.find(([key]) => key === screen) || SCREENS[0];
  leave?.();
  watchers = new Set();
  replace(document.getElementById("nav"), SCREENS.map(([key, title]) =>
    h("li", {}, h("a", { href: `#/${key}`, "aria-current": key === found[0] ? "page" : null }, title))));
  document.title = `${name ? decodeURIComponent(name) : found[1]} · Astha`;
  main.replaceChildren();
  const decoded = name && decodeURIComponent(name);
  leave = decoded && found[3] ? found[3](main, context, decoded) : found[2](main, context);
  if (event) main.focus({ preventScroll: true });
  scrollTo(0, 0);
}

function onState(state, reason) {
  const texts = { live: "live", problem: "not responding", disconnected: "disconnected, trying again", denied: "a token is needed" };
  if (connection.textContent !== texts[state]) connection.textContent = texts[state];
  connection.className = state;
  connection.title = reason;
  document.body.classList.toggle("stale", state !== "live");
  if (state === "denied" && !status && !main.querySelector(".denied"))
    replace(main, h("div", { class: "error denied", role: "alert" }, h("h1", {}, "This daemon asks for a token"), h("p", {}, reason),
      h("button", { type: "button", onclick: async () => (await askToken()) && route() }, "Enter a token")));
}

takeTokenFromAddress();
document.getElementById("token").addEventListener("click", async () => (await askToken()) && route());
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault(); // the fragment is the address of a screen
  main.focus();
});
addEventListener("hashchange", route);
route();
live((next) => {
  status = next;
  for (const show of watchers) show(next);
}, onState);

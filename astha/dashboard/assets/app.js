// The router: one screen per address, the live status for all of them, and the states that help when something is wrong.
import { h, sentence, prose, replace } from "./dom.js";
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
const banner = document.getElementById("banner");
let status = null;
let watchers = new Set();
let leave = null;
let title = "Astha";
let connected = null;
let lastHeard = null;

const context = {
  status: () => status,
  onStatus: (show) => {
    watchers.add(show);
    return () => watchers.delete(show);
  },
  every: (ms, work) => {
    let working = false; // a slow daemon is not asked twice at once
    const timer = setInterval(async () => {
      if (working || document.visibilityState !== "visible") return;
      working = true;
      try {
        await work();
      } finally {
        working = false;
      }
    }, ms);
    return () => clearInterval(timer);
  },
  // Runs work; if it fails, shows the reason and a button to try again. What was shown before stays, with the reason above it.
  guarded: async (element, work) => {
    if (!element.childElementCount) replace(element, h("p", { class: "loading" }, "Loading…"));
    if (!element.dataset.loaded) element.setAttribute("aria-busy", "true");
    try {
      await work();
      element.dataset.loaded = "yes";
      delete element.dataset.failure;
    } catch (error) {
      if (error.name === "AbortError" || element.dataset.failure === error.message) return; // announced once, not at each try
      element.dataset.failure = error.message;
      const denied = error.status === 401 || error.status === 403;
      const again = async () => {
        if (denied && !(await askToken())) return;
        delete element.dataset.failure;
        context.guarded(element, work);
      };
      const notice = h("div", { class: "error", role: "alert" }, h("p", {}, prose(element.dataset.loaded ? `Not up to date. ${sentence(error.message)}` : sentence(error.message))),
        h("button", { type: "button", "data-again": !denied, onclick: again }, denied ? "Enter a token" : "Try again"));
      if (!element.dataset.loaded || denied) replace(element, notice);
      else {
        element.querySelector(":scope > .error")?.remove();
        element.prepend(notice);
      }
    } finally {
      element.removeAttribute("aria-busy");
    }
  },
};

// An address that was typed or cut may be none.
function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

function route(event) {
  const [, screen = "", encoded] = location.hash.split("/");
  const name = encoded && decoded(encoded);
  const found = SCREENS.find(([key]) => key === screen) || SCREENS[0];
  leave?.();
  watchers = new Set();
  replace(document.getElementById("nav"), SCREENS.map(([key, title]) =>
    h("li", {}, h("a", { href: `#/${key}`, "aria-current": key === found[0] ? "page" : null }, title))));
  title = `${name || found[1]} · Astha`;
  showTitle();
  main.replaceChildren();
  leave = name && found[3] ? found[3](main, context, name) : found[2](main, context);
  if (event) main.focus({ preventScroll: true });
  scrollTo(0, 0);
}

// A tab in the background shows that something is wrong.
function showTitle() {
  const wrong = connected === false || (status && !status.ready && status.leadership.role !== "standing by");
  document.title = wrong ? `⚠ ${title}` : title;
}

const ADVICE = {
  problem: "The process runs, but its event loop does not respond. Its log names the component that blocks it; `astha check` looks at the rest.",
  disconnected: "Is it running? `astha up` or `astha run` starts it in a terminal; `systemctl status astha` and its log say more of a service. This page connects again by itself.",
};

function onState(state, reason) {
  const texts = { live: "live", problem: "not responding", disconnected: "disconnected", denied: "a token is needed" };
  const back = state === "live" && connected === false;
  connected = state === "live";
  if (connected) lastHeard = new Date();
  const advice = ADVICE[state];
  if (!advice) banner.replaceChildren();
  else if (!banner.querySelector(`.${state}`)) {
    const since = lastHeard ? ` Shown is its state at ${lastHeard.toISOString().slice(11, 19)} UTC.` : "";
    replace(banner, h("div", { class: `error ${state}` }, h("p", {}, h("strong", {}, sentence(reason || "the daemon does not respond")), since), h("p", {}, prose(advice))));
  }
  if (back) for (const again of document.querySelectorAll("[data-again]")) again.click();
  showTitle();
  if (connection.textContent !== texts[state]) connection.textContent = texts[state];
  connection.className = state;
  connection.title = reason;
  document.body.classList.toggle("stale", state !== "live");
  if (state === "denied" && !status && !main.querySelector(".denied"))
    replace(main, h("div", { class: "error denied", role: "alert" }, h("h1", {}, "This daemon asks for a token"), h("p", {}, prose(reason)),
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
  showTitle();
  for (const show of watchers) show(next);
}, onState);

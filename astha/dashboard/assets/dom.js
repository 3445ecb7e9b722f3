// Elements are made from text nodes only: no value of the registry is ever parsed as HTML.
const SVG = "http://www.w3.org/2000/svg";
const HANDLERS = ["onclick", "onsubmit"];

export function h(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

export function s(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (HANDLERS.includes(name)) element[name] = value;
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.flat(9).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

export const number = (value) => (value === null || value === undefined ? "–" : Number(value).toLocaleString("en-US"));

export function rate(value) {
  return value >= 100 ? number(Math.round(value)) : String(Math.round(value * 100) / 100);
}

export function bytes(value) {
  if (value === null || value === undefined) return "–";
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let unit = 0;
  while (value >= 1024 && unit < units.length - 1) [value, unit] = [value / 1024, unit + 1];
  return `${unit && value < 100 ? value.toFixed(1).replace(/\.0$/, "") : Math.round(value)} ${units[unit]}`;
}

export function seconds(value) {
  if (value === null || value === undefined) return "–";
  if (value < 1) return `${Math.round(value * 1000)} ms`;
  if (value < 120) return `${value < 10 ? value.toFixed(1) : Math.round(value)} s`;
  return value < 7200 ? `${Math.round(value / 60)} min` : `${Math.round(value / 3600)} h`;
}

export function when(ms) {
  if (!ms) return "–";
  const text = new Date(ms).toISOString().replace("T", " ");
  return h("time", { datetime: new Date(ms).toISOString(), title: `${text.slice(0, 19)} UTC` }, ago(ms));
}

export function ago(ms) {
  const passed = (Date.now() - ms) / 1000;
  if (passed < 0) return `in ${seconds(-passed)}`;
  if (passed < 5) return "just now";
  return passed < 172800 ? `${seconds(passed)} ago` : new Date(ms).toISOString().slice(0, 10);
}

// A problem of a component with one table.
export const described = ({ subject, reason, since, attempts, next_try }) => [
  prose(sentence(reason.startsWith(`${subject}: `) ? reason.slice(subject.length + 2) : reason)), " ",
  h("span", { class: "hint" }, "Since ", when(since), attempts ? `, ${plural(attempts, "attempt")}` : "", next_try ? [", the next one ", when(next_try)] : "", ".")];

// A table with a caption and headers; on a phone each row becomes a card with its headers as labels.
export function table(caption, columns, rows, empty) {
  if (!rows.length) return h("p", { class: "empty" }, prose(empty));
  const head = columns.map(([title, , kind]) => h("th", { scope: "col", class: kind }, title));
  const body = rows.map((row) =>
    h("tr", { "data-key": row.id === undefined ? null : `${caption} ${row.id}` }, columns.map(([title, show, kind], index) => {
      const cell = index ? h("td", { class: kind, "data-label": title }) : h("th", { scope: "row", class: kind });
      cell.append(h("div", {}, [show(row)].flat(9).map((part) => part ?? "–")));
      return cell;
    })),
  );
  return h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": caption },
    h("table", {}, h("caption", {}, caption), h("thead", {}, h("tr", {}, head)), h("tbody", {}, body)));
}

export const plural = (count, noun) => `${number(count)} ${noun}${count === 1 ? "" : "s"}`;

// What is between backticks becomes code.
export function prose(text) {
  const parts = text.split("`");
  return parts.length % 2 ? parts.map((part, index) => (index % 2 ? h("code", {}, part) : part)) : text;
}

export const sentence = (text) => text[0].toUpperCase() + text.slice(1).replace(/[^.!?]$/, "$&.");

export const badge = (text, kind = "") => h("span", { class: `badge ${kind}` }, text);

const KINDS = {
  live: "good", done: "good", created: "good", leading: "good", leader: "good", closed: "good", active: "good",
  broken: "bad", failed: "bad", open: "bad", gone: "bad", aborted: "warn",
  bootstrapping: "warn", recovering: "warn", paused: "warn", waiting: "warn", running: "info", requested: "info",
  "half-open": "warn", held: "warn", "standing by": "info", standby: "info", retrying: "warn", "waiting for the registry": "warn",
};

export const state = (text) => badge(text, KINDS[text] || "");

export function replace(parent, ...children) {
  parent.replaceChildren(...children.flat(9).filter(Boolean));
}

// As replace, for what is drawn again and again: what did not change stays, and so do focus, selected text, scroll positions
// and opened details.
export function update(parent, ...children) {
  const focused = parent.contains(document.activeElement) ? address(document.activeElement) : null;
  const opened = new Set([...parent.querySelectorAll("details[open][data-key]")].map((one) => one.dataset.key));
  patchChildren(parent, children.flat(9).filter(Boolean).map((one) => (one instanceof Node ? one : document.createTextNode(one))));
  for (const one of parent.querySelectorAll("details[data-key]")) if (opened.has(one.dataset.key)) one.open = true;
  const kept = parent.contains(document.activeElement) && address(document.activeElement) === focused;
  if (focused && !kept) parent.querySelector(focused)?.focus({ preventScroll: true });
}

const keyOf = (node) => (node.nodeType === Node.ELEMENT_NODE ? address(node) : null);

// Elements with a name are matched by it, others by their place.
function patchChildren(parent, fresh) {
  const named = new Map([...parent.children].map((child) => [keyOf(child), child]));
  let at = parent.firstChild;
  for (const next of fresh) {
    const key = keyOf(next);
    const alike = at && at.nodeName === next.nodeName && keyOf(at) === null ? at : null;
    const found = key === null ? alike : named.get(key);
    if (!found) parent.insertBefore(next, at);
    else {
      named.delete(key);
      if (found === at) at = at.nextSibling;
      else parent.insertBefore(found, at);
      patch(found, next);
    }
  }
  while (at) {
    const after = at.nextSibling;
    at.remove();
    at = after;
  }
}

function patch(old, next) {
  if (old.nodeType !== Node.ELEMENT_NODE) {
    if (old.data !== next.data) old.data = next.data;
    return;
  }
  for (const { name } of [...old.attributes]) if (name !== "open" && !next.hasAttribute(name)) old.removeAttribute(name);
  for (const { name, value } of next.attributes) if (name !== "style" && old.getAttribute(name) !== value) old.setAttribute(name, value);
  if (old.style.cssText !== next.style.cssText) old.style.cssText = next.style.cssText; // an attribute would be against the policy
  for (const name of HANDLERS) old[name] = next[name];
  patchChildren(old, [...next.childNodes]);
}

// Returns a selector that finds the element again when it was drawn again, or null.
export function address(element) {
  const tag = element.localName;
  if (element.dataset.key) return `[data-key="${CSS.escape(element.dataset.key)}"]`;
  if (tag === "summary" && element.parentElement.dataset.key) return `details[data-key="${CSS.escape(element.parentElement.dataset.key)}"] > summary`;
  const name = ["href", "aria-label"].find((one) => element.hasAttribute(one));
  return name ? `${tag}[${name}="${CSS.escape(element.getAttribute(name))}"]` : null;
}

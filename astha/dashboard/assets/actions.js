// Every action is confirmed in a dialog that says what will happen; the daemon logs it with its origin.
import { h, address, prose } from "./dom.js";
import { get, post, token } from "./api.js";

export function toast(text, kind = "good") {
  const element = h("div", { class: `toast ${kind}` }, h("span", {}, prose(text)));
  document.getElementById("toasts").append(element);
  if (kind !== "bad") setTimeout(() => element.remove(), 6000);
  else element.append(h("button", { type: "button", "aria-label": "Dismiss", onclick: () => element.remove() }, "×")); // errors stay until read
}

function dialog(title, content, confirm) {
  return new Promise((resolve) => {
    const form = h("form", { method: "dialog" },
      h("h2", { id: "dialog-title" }, title), content,
      h("div", { class: "buttons" },
        h("button", { value: "cancel", type: "submit", formnovalidate: true }, "Cancel"),
        h("button", { value: "confirm", type: "submit", class: "primary" }, confirm)));
    const before = document.activeElement && address(document.activeElement);
    const element = h("dialog", { "aria-labelledby": "dialog-title" }, form);
    element.addEventListener("close", () => {
      resolve(element.returnValue === "confirm" ? Object.fromEntries(new FormData(form)) : null);
      element.remove();
      if (before) document.querySelector(before)?.focus(); // what was focused may have been drawn again meanwhile
    });
    document.body.append(element);
    element.showModal();
  });
}

const field = (label, name, attributes = {}) => h("label", {}, label, h("input", { name, autocomplete: "off", ...attributes }));

export async function askToken() {
  const given = await dialog("Token", [
    h("p", {}, "The daemon's ", h("code", {}, "server.token"), " allows actions, ", h("code", {}, "server.read_token"), " allows reading. It stays in this tab until you close it."),
    field("Token", "token", { type: "password" }),
  ], "Use it");
  if (given === null) return false;
  token.set(given.token.trim());
  dispatchEvent(new Event("astha-token"));
  return Boolean(given.token.trim());
}

async function mayChange() {
  let access = await get("/api/access");
  if (!access.changes) {
    toast("This daemon has no server.token, so it accepts no changes. Set one and start it again.", "bad");
    return false;
  }
  if (!access.write && (await askToken())) access = await get("/api/access");
  if (!access.write) toast("Actions need the daemon's server.token.", "bad");
  return access.write;
}

async function perform(path, values, done) {
  try {
    const result = await post(path, values);
    toast(typeof done === "function" ? done(result) : done);
    dispatchEvent(new Event("astha-changed"));
  } catch (error) {
    toast(error.message, "bad");
  }
}

const COMPONENT = {
  refresh: "It reads the registry again. Its queued events are dropped, because the registry contains them.",
  pause: "It receives nothing until it is resumed, also after restarts. No events are kept for it.",
  resume: "Deliveries begin again, after a refresh.",
};

export async function onComponent(name, action) {
  if (!(await mayChange())) return;
  const title = `${action[0].toUpperCase()}${action.slice(1)} ${name}?`;
  if (await dialog(title, h("p", {}, COMPONENT[action]), title.split(" ")[0]))
    await perform(`/components/${encodeURIComponent(name)}/${action}`, {}, (result) => `${name} is ${result.state}.`);
}

const path = (name, action) => `/tables/${encodeURIComponent(name)}/${action}`;

export async function compact(name) {
  if (!(await mayChange())) return;
  const text = "Every partition with two or more small files is merged now, whatever the thresholds say.";
  if (await dialog(`Compact ${name}?`, h("p", {}, text), "Compact"))
    await perform(path(name, "compact"), {}, (result) => `Compacting ${result.partitions} partition${result.partitions === 1 ? "" : "s"} of ${name}.`);
}

export async function cancel(name, partition) {
  if (!(await mayChange())) return;
  const text = "Waiting and running compactions end within seconds and leave no files.";
  if (await dialog(`Cancel compactions of ${name}?`, h("p", {}, text), "Cancel compactions"))
    await perform(path(name, "cancel"), { partition }, (result) => `Cancelled: ${result.cancelled.length}.`);
}

export async function snapshot(name) {
  if (!(await mayChange())) return;
  const given = await dialog(`Snapshot of ${name}`, [
    h("p", {}, "It contains everything inserted before. The tag also names it in Iceberg."),
    field("Tag (optional)", "tag", { maxlength: 200 }),
  ], "Request snapshot");
  if (given) await perform(path(name, "snapshot"), { tag: given.tag.trim() }, "Snapshot requested.");
}

export async function rollback(name, id, tag) {
  if (!(await mayChange())) return;
  let plan;
  try {
    plan = await post(path(name, "rollback"), { snapshot: id, dry_run: 1 });
  } catch (error) {
    toast(error.message, "bad");
    return;
  }
  const text = plan.removed || plan.restored
    ? `Files removed: ${plan.removed}, restored: ${plan.restored}; ${plan.rows > 0 ? "+" : ""}${plan.rows.toLocaleString("en-US")} rows. The schema stays as it is.`
    : "The table has the files of this snapshot already.";
  if (await dialog(`Roll ${name} back to ${tag || id}?`, h("p", {}, text), "Roll back"))
    await perform(path(name, "rollback"), { snapshot: id }, `${name} is rolled back; Iceberg follows.`);
}

export const button = (text, act, kind = "") => h("button", { type: "button", class: kind, onclick: act }, text);

// A list that the daemon pages. It is read again now and then, and only the newest request is shown.
import { h, update } from "./dom.js";

const FRESH_MS = 10000;

// read(after, signal) returns a page, whose `after` begins the next one; show(page, number of the page, from 0) draws it.
export function paged(element, { guarded, every }, read, show, [back, forth] = ["Previous", "Next"]) {
  let keys = [null];
  let pending = null;
  const load = () => {
    pending?.abort();
    pending = new AbortController();
    const { signal } = pending;
    return guarded(element, async () => {
      const page = await read(keys.at(-1), signal).finally(() => { if (pending?.signal === signal) pending = null; });
      update(element, show(page, keys.length - 1), h("div", { class: "pager" },
        h("button", { type: "button", disabled: keys.length === 1, onclick: () => { keys.pop(); load(); } }, back),
        h("button", { type: "button", disabled: !page.after, onclick: () => { keys.push(page.after); load(); } }, forth)));
    });
  };
  const stop = every(FRESH_MS, () => pending || load());
  let typing = 0;
  load();
  return {
    load,
    restart: (wait) => () => {
      clearTimeout(typing);
      typing = setTimeout(() => { keys = [null]; load(); }, wait);
    },
    leave: () => {
      clearTimeout(typing);
      stop();
      pending?.abort();
    },
  };
}

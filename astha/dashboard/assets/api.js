// Requests with the token, which lives in this tab only, and the live stream, which reconnects by itself.
const KEY = "astha.token";

export class ApiError extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

export const token = {
  get: () => sessionStorage.getItem(KEY) || "",
  set: (value) => (value ? sessionStorage.setItem(KEY, value) : sessionStorage.removeItem(KEY)),
};

// `astha up` may open the page with the token behind "#token=": the fragment is never sent, and is removed at once.
export function takeTokenFromAddress() {
  const found = /^#token=(.+)$/.exec(location.hash);
  if (found) {
    token.set(decodeURIComponent(found[1]));
    history.replaceState(null, "", location.pathname);
  }
}

const headers = () => (token.get() ? { Authorization: `Bearer ${token.get()}` } : {});

async function request(path, options = {}) {
  let response;
  try {
    response = await fetch(path, { ...options, headers: headers(), cache: "no-store" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError("The daemon can’t be reached.", 0);
  }
  if (!response.ok) {
    const body = await response.json().catch(() => ({}));
    throw new ApiError(body.error || `The daemon responded with ${response.status}.`, response.status);
  }
  return response;
}

const query = (values) => {
  const given = Object.entries(values || {}).filter(([, value]) => value !== null && value !== undefined && value !== "");
  return given.length ? `?${new URLSearchParams(given)}` : "";
};

export async function get(path, values, signal) {
  return (await request(path + query(values), { signal })).json();
}

export async function post(path, values) {
  return (await request(path + query(values), { method: "POST" })).json();
}

// Yields the lines of a streamed response.
async function* lines(path, signal) {
  const response = await request(path, { signal });
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const parts = (rest + value).split("\n");
    rest = parts.pop();
    yield* parts;
  }
}

export async function follow(values, onEvent, signal) {
  for await (const line of lines(`/events${query(values)}`, signal)) if (line) onEvent(JSON.parse(line));
}

// Calls onStatus for each status, and onState with "live", "problem", "disconnected" or "denied". Never ends.
export async function live(onStatus, onState) {
  let failures = 0;
  for (;;) {
    const stop = new AbortController();
    let watchdog = setTimeout(() => stop.abort(), 15000);
    try {
      let event = "";
      for await (const line of lines("/api/live", stop.signal)) {
        clearTimeout(watchdog);
        watchdog = setTimeout(() => stop.abort(), 15000);
        if (line.startsWith("event: ")) event = line.slice(7);
        else if (line.startsWith("data: ")) {
          const value = JSON.parse(line.slice(6));
          failures = 0;
          if (event === "status") {
            onState("live", "");
            onStatus(value);
          } else onState("problem", value.error);
        }
      }
      onState("disconnected", "The daemon has closed the connection.");
    } catch (error) {
      const denied = error.status === 401 || error.status === 403;
      onState(denied ? "denied" : "disconnected", error.message);
      if (denied) await new Promise((resolve) => addEventListener("astha-token", resolve, { once: true }));
    } finally {
      clearTimeout(watchdog);
    }
    failures += 1;
    await new Promise((resolve) => setTimeout(resolve, Math.min(500 * 2 ** Math.min(failures, 4), 5000)));
  }
}

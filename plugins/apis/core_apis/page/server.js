// Talks to the server that this page came from: requests with the key, streams of events, metrics.

const KEY = "core-api-key";

const GONE = "The server cannot be reached. Does it run, and is this machine connected?";
const BROKEN = "The connection broke off before the answer was complete.";

let refused = () => {}; // called when the server refuses the key

export class ServerError extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

export function apiKey() {
  return sessionStorage.getItem(KEY) ?? "";
}

export function setApiKey(key) {
  if (key) sessionStorage.setItem(KEY, key);
  else sessionStorage.removeItem(KEY);
}

export function onRefusedKey(action) {
  refused = action;
}

function headers() {
  const found = { "content-type": "application/json" };
  if (apiKey()) found.authorization = `Bearer ${apiKey()}`;
  return found;
}

// Fetches, and throws unless the answer is a success. Browsers have no readable error for a server that is gone, so this is ours.
async function sent(path, options) {
  let answer;
  try {
    answer = await fetch(path, { headers: headers(), ...options });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ServerError(GONE);
  }
  return checked(answer);
}

async function checked(answer) {
  if (answer.ok) return answer;
  if (answer.status === 401) refused();
  let message = `The server answered ${answer.status}.`;
  try {
    const body = await answer.json();
    message = body.error?.message ?? body.message ?? message;
  } catch {
    // an answer that is not JSON has no better message
  }
  throw new ServerError(message, answer.status);
}

// Paths are relative, so the page works behind a proxy that adds a prefix.
export async function get(path) {
  return (await sent(path)).json();
}

export async function getText(path) {
  return (await sent(path)).text();
}

// Calls `onEvent` with each parsed event of a streamed answer. A stream without its final event broke off.
export async function stream(path, body, signal, onEvent) {
  const answer = await sent(path, { method: "POST", body: JSON.stringify(body), signal });
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await next(reader);
    if (done) throw new ServerError(BROKEN);
    const events = (rest + value).split("\n\n");
    rest = events.pop();
    for (const event of events) {
      const data = event.split("\n").filter((line) => line.startsWith("data: ")).map((line) => line.slice(6)).join("\n");
      if (data === "[DONE]") return;
      if (!data) continue;
      const parsed = JSON.parse(data);
      if (parsed.error) throw new ServerError(parsed.error.message, parsed.error.code);
      onEvent(parsed);
    }
  }
}

async function next(reader) {
  try {
    return await reader.read();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ServerError(BROKEN);
  }
}

// Parses Prometheus' text format into {name: [{labels: text, value: number}]}.
export async function metrics() {
  const found = {};
  for (const line of (await getText("metrics?look")).split("\n")) {
    const parts = /^([\w:]+)(?:\{(.*)\})? (\S+)$/.exec(line);
    if (!parts) continue;
    (found[parts[1]] ??= []).push({ labels: parts[2] ?? "", value: Number(parts[3]) });
  }
  return found;
}

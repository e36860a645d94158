// Talks to the server that this page came from: requests with the key, streams of events, metrics.

const KEY = "core-api-key";

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
  sessionStorage.setItem(KEY, key);
}

function headers() {
  const found = { "content-type": "application/json" };
  if (apiKey()) found.authorization = `Bearer ${apiKey()}`;
  return found;
}

async function checked(answer) {
  if (answer.ok) return answer;
  let message = `The server answered ${answer.status}.`;
  try {
    const body = await answer.json();
    message = body.error?.message ?? body.message ?? message;
  } catch {
    // an answer that is no JSON has no better words
  }
  throw new ServerError(message, answer.status);
}

// Paths are relative, so the page works behind a proxy that adds a prefix.
export async function get(path) {
  return (await checked(await fetch(path, { headers: headers() }))).json();
}

export async function getText(path) {
  return (await checked(await fetch(path, { headers: headers() }))).text();
}

// Calls `onEvent` with each event of a streamed answer, parsed.
export async function stream(path, body, signal, onEvent) {
  const answer = await checked(
    await fetch(path, { method: "POST", headers: headers(), body: JSON.stringify(body), signal }),
  );
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const events = (rest + value).split("\n\n");
    rest = events.pop();
    for (const event of events) {
      const data = event.split("\n").filter((line) => line.startsWith("data: ")).map((line) => line.slice(6)).join("\n");
      if (!data || data === "[DONE]") continue;
      const parsed = JSON.parse(data);
      if (parsed.error) throw new ServerError(parsed.error.message, parsed.error.code);
      onEvent(parsed);
    }
  }
}

// Prometheus' text as {name: [{labels: text, value: number}]}.
export async function metrics() {
  const found = {};
  for (const line of (await getText("metrics")).split("\n")) {
    const parts = /^([\w:]+)(?:\{(.*)\})? (\S+)$/.exec(line);
    if (!parts) continue;
    (found[parts[1]] ??= []).push({ labels: parts[2] ?? "", value: Number(parts[3]) });
  }
  return found;
}

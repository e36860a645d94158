// The conversation: what is sent, the answer as it comes, tools that the user answers for.

import { find, make } from "./elements.js";
import { Message } from "./message.js";
import { stream } from "./server.js";

const NUMBERS = ["temperature", "top_p", "max_tokens", "seed"];
const NEAR_END = 40; // pixels

let turns = []; // {message: as the API wants it, element: that shows it}; a new chat is a new list
let running = null; // the AbortController of the answer that is being written

function parsed(id, what) {
  const text = find(id).value.trim();
  if (!text) return undefined;
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new Error(`${what}: ${error.message}`);
  }
}

function requestBody() {
  const system = find("system").value.trim();
  const messages = turns.map((turn) => turn.message);
  const body = { messages: system ? [{ role: "system", content: system }, ...messages] : messages };
  for (const name of NUMBERS) {
    if (find(name).value !== "") body[name] = Number(find(name).value);
  }
  const effort = find("reasoning_effort").value;
  if (effort) body.reasoning_effort = effort;
  body.tools = parsed("tools", "Tools");
  const schema = parsed("schema", "Schema of the answer");
  if (schema) body.response_format = { type: "json_schema", json_schema: { name: "answer", schema } };
  if (find("logprobs").checked) Object.assign(body, { logprobs: true, top_logprobs: 5 });
  return { ...body, model: find("model").dataset.name, stream: true, stream_options: { include_usage: true } };
}

function busy(isBusy) {
  find("send").hidden = isBusy;
  find("stop").hidden = !isBusy;
  find("again").disabled = isBusy || !turns.length;
}

function show(message, element) {
  turns.push({ message, element });
  find("conversation").append(element);
}

function showEnd() {
  scrollTo(0, document.documentElement.scrollHeight);
}

// Makes a change of the conversation, and keeps the end in view unless the reader has scrolled up.
function follow(change) {
  const wasAtEnd = innerHeight + scrollY >= document.documentElement.scrollHeight - NEAR_END;
  change();
  if (wasAtEnd) showEnd();
}

function fail(error) {
  find("conversation").append(make("p", { class: "error", role: "alert" }, error.message));
}

function showUsage(usage, begin, first) {
  const seconds = (performance.now() - first) / 1000;
  const rate = usage.completion_tokens > 1 && seconds > 0 ? (usage.completion_tokens - 1) / seconds : 0;
  const cached = usage.prompt_tokens_details?.cached_tokens;
  const parts = [
    `${usage.prompt_tokens} + ${usage.completion_tokens} tokens`,
    cached ? `${cached} from the cache` : "",
    `first after ${Math.round(first - begin)} ms`,
    rate ? `${rate.toFixed(0)} tokens a second` : "",
  ];
  find("usage").textContent = parts.filter(Boolean).join(" · ");
}

async function answer() {
  let body;
  try {
    body = requestBody();
  } catch (error) {
    fail(error);
    return;
  }
  const chat = turns;
  running = new AbortController();
  busy(true);
  const message = new Message("assistant");
  find("conversation").append(message.element);
  showEnd();
  const begin = performance.now();
  let first = null;
  let usage = null;
  try {
    await stream("v1/chat/completions", body, running.signal, (event) => {
      first ??= performance.now();
      usage = event.usage ?? usage;
      follow(() => (event.choices ?? []).forEach((choice) => message.add(choice)));
    });
  } catch (error) {
    if (error.name !== "AbortError") fail(error);
  }
  running = null;
  if (chat !== turns) return; // a new chat has begun
  follow(() => message.end());
  if (usage && first !== null) showUsage(usage, begin, first);
  const said = message.said();
  if (said) turns.push({ message: said, element: message.element });
  else message.element.remove();
  busy(false);
  askForResults(said?.tool_calls ?? []);
}

// Whoever sits in front of the page plays the tools.
function askForResults(calls) {
  if (!calls.length) return;
  const fields = calls.map((call) => make("textarea", { rows: 2, "aria-label": `Result of ${call.function.name}` }));
  const labels = calls.map((call, index) => make("label", {}, `Result of ${call.function.name}`, fields[index]));
  const form = make("form", { class: "results" }, ...labels, make("button", { type: "submit" }, "Give results"));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    calls.forEach((call, index) => {
      const shown = new Message("tool");
      shown.setText(fields[index].value);
      show({ role: "tool", tool_call_id: call.id, content: fields[index].value }, shown.element);
    });
    form.remove();
    answer();
  });
  find("conversation").append(form);
  fields[0].focus();
}

function ask() {
  const text = find("question").value;
  if (running || !text.trim()) return;
  find("question").value = "";
  const shown = new Message("user");
  shown.setText(text);
  show({ role: "user", content: text }, shown.element);
  answer();
}

// The last answer once more.
function again() {
  while (turns.length && turns.at(-1).message.role === "assistant") turns.pop().element.remove();
  for (const each of document.querySelectorAll("#conversation > .results, #conversation > .error")) each.remove();
  answer();
}

export function startChat() {
  find("compose").addEventListener("submit", (event) => {
    event.preventDefault();
    ask();
  });
  find("question").addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      ask();
    }
  });
  find("stop").addEventListener("click", () => running?.abort());
  find("again").addEventListener("click", again);
  find("clear").addEventListener("click", () => {
    running?.abort();
    turns = [];
    find("conversation").replaceChildren();
    find("usage").textContent = "";
    busy(false);
  });
}

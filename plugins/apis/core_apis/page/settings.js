// The request parameters of each question. They survive a reload of the tab.

import { find } from "./elements.js";
import { keep, kept } from "./keeping.js";

const NUMBERS = ["temperature", "top_p", "max_tokens", "seed"];
const FIELDS = [...NUMBERS, "reasoning_effort", "system", "tools", "schema"];
const KEPT = "core-settings";

function parsed(id, what) {
  const text = find(id).value.trim();
  if (!text) return undefined;
  try {
    return JSON.parse(text);
  } catch (error) {
    openSettings();
    find(id).focus();
    throw new Error(`${what}: ${error.message}`);
  }
}

function openSettings() {
  find("settings").open = true;
}

function numbers() {
  const found = {};
  for (const name of NUMBERS) {
    if (find(name).validity.badInput) {
      openSettings();
      find(name).focus();
      throw new Error(`${find(name).labels[0].textContent.trim()}: this is not a number.`);
    }
    if (find(name).value !== "") found[name] = Number(find(name).value);
  }
  return found;
}

// Returns the body of a request. Throws an error about an invalid setting.
export function requestBody(turns) {
  const system = find("system").value.trim();
  const body = { messages: system ? [{ role: "system", content: system }, ...turns] : turns, ...numbers() };
  const effort = find("reasoning_effort").value;
  if (effort) body.reasoning_effort = effort;
  body.tools = parsed("tools", "Tools");
  const schema = parsed("schema", "Schema of the answer");
  if (schema) body.response_format = { type: "json_schema", json_schema: { name: "answer", schema } };
  if (find("logprobs").checked) Object.assign(body, { logprobs: true, top_logprobs: 5 });
  return { ...body, model: find("model").dataset.name, stream: true, stream_options: { include_usage: true } };
}

function keepSettings() {
  const values = Object.fromEntries(FIELDS.map((name) => [name, find(name).value]));
  keep(KEPT, { ...values, logprobs: find("logprobs").checked });
  find("changed").hidden = !FIELDS.some((name) => find(name).value !== find(name).defaultValue && find(name).value);
}

export function startSettings() {
  const before = kept(KEPT) ?? {};
  for (const name of FIELDS) {
    if (typeof before[name] === "string") find(name).value = before[name];
  }
  if (typeof before.logprobs === "boolean") find("logprobs").checked = before.logprobs;
  find("settings").addEventListener("input", keepSettings);
  find("settings").addEventListener("toggle", () => {
    if (find("settings").open) find("settings").scrollIntoView({ block: "nearest" });
  });
  keepSettings();
}

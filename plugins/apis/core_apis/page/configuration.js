// The configuration explained: where every value came from, and why.

import { find, make } from "./elements.js";
import { get } from "./server.js";

let explained = null;

function text(value) {
  return typeof value === "string" ? value : JSON.stringify(value);
}

function table(head, rows) {
  const heads = head.map((name) => make("th", {}, name));
  const lines = rows.map((row) => make("tr", {}, ...row.map((cell) => make("td", {}, cell))));
  return make("div", { class: "scroll" }, make("table", {}, make("thead", {}, make("tr", {}, ...heads)), make("tbody", {}, ...lines)));
}

function argumentRows() {
  const wanted = find("filter").value.toLowerCase();
  const all = find("all").checked;
  return Object.entries(explained.arguments)
    .filter(([, row]) => all || row.origin !== "default")
    .map(([name, row]) => [name, size(name, row.value), row.origin, row.reason])
    .filter((row) => row.join(" ").toLowerCase().includes(wanted));
}

function pluginRows() {
  return Object.entries(explained.plugins).map(([kind, row]) => [kind, row.chosen.join(", ") || "none", row.why]);
}

function size(name, value) {
  const isLarge = /bytes/.test(name) && typeof value === "number" && value >= 1024;
  return isLarge ? `${(value / 2 ** 20).toFixed(value < 2 ** 20 ? 3 : 1)} MiB` : text(value);
}

function memoryRows() {
  return Object.entries(explained.memory).map(([name, value]) => [name.replaceAll("_", " "), size(name, value)]);
}

function render() {
  const parts = [
    make("p", { class: "dim summary" }, `${explained.model} on ${explained.device}; numerics ${explained.numerics ?? "known when the engine is up"}`),
    ...explained.warnings.map((warning) => make("p", { class: "error" }, warning)),
    make("h2", {}, "Arguments"),
    table(["name", "value", "from", "because"], argumentRows()),
    make("h2", {}, "Plugins"),
    table(["kind", "chosen", "because"], pluginRows()),
    make("h2", {}, "Memory, by shapes"),
    table(["what", "size"], memoryRows()),
  ];
  find("explained").replaceChildren(...parts);
}

export async function showConfiguration() {
  try {
    explained = await get("live/configuration");
  } catch (error) {
    find("explained").replaceChildren(make("p", { class: "error" }, error.message));
    return;
  }
  if (!explained.arguments) {
    const why = "This server does not tell its configuration.";
    find("explained").replaceChildren(make("p", { class: "dim" }, why));
    return;
  }
  find("filter").oninput = render;
  find("all").onchange = render;
  render();
}

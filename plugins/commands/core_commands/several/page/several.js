"use strict";

// The page about the models of a server: asks /v1/models every two seconds, and sends what a button asks for.

const PERIOD_MS = 2000;
let key = sessionStorage.getItem("key") || "";

function element(name, text, className) {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  if (className) made.className = className;
  return made;
}

function size(bytes) {
  return bytes >= 1 << 30 ? `${(bytes / (1 << 30)).toFixed(2)} GiB` : `${Math.round(bytes / (1 << 20))} MiB`;
}

async function ask(path, method) {
  const headers = key ? { Authorization: `Bearer ${key}` } : {};
  const answer = await fetch(path, { method, headers });
  const body = await answer.json();
  if (answer.ok) return body;
  document.getElementById("key").hidden = answer.status !== 401 && answer.status !== 403;
  throw new Error(body.error ? body.error.message : `${answer.status}`);
}

function row(model) {
  const made = element("tr");
  const name = element("td");
  const link = element("a", model.id);
  link.href = `models/${model.root.split("/").map(encodeURIComponent).join("/")}/`;
  name.append(link, model.pinned ? " (pinned)" : "");
  const failed = model.cause !== undefined && model.state === "absent";
  const state = element("td", failed ? "failed" : model.state, `state ${failed ? "failed" : model.state}`);
  if (model.cause) state.title = model.cause;
  made.append(name, state, element("td", size(model.bytes), "number"));
  made.append(element("td", model.running, "number"), element("td", model.waiting, "number"), actions(model));
  return made;
}

function actions(model) {
  const cell = element("td");
  const verb = model.state === "awake" || model.state === "closing" ? "unload" : "load";
  const button = element("button", verb === "load" ? "Wake" : "Put to sleep");
  button.disabled = model.pinned && verb === "unload";
  button.addEventListener("click", async () => {
    button.disabled = true;
    await show(() => ask(`models/${model.root.split("/").map(encodeURIComponent).join("/")}/${verb}`, "POST"));
    await refresh();
  });
  cell.append(button);
  return cell;
}

async function show(work) {
  try {
    const found = await work();
    document.getElementById("problem").textContent = "";
    return found;
  } catch (error) {
    document.getElementById("problem").textContent = error.message;
    return undefined;
  }
}

async function refresh() {
  const list = await show(() => ask("v1/models", "GET"));
  if (list === undefined) return;
  document.getElementById("budget").textContent =
    `${size(list.used_bytes)} of ${size(list.budget_bytes)} are taken, as planned.`;
  const own = list.data.filter((model) => model.id === model.root);
  document.getElementById("models").replaceChildren(...own.map(row));
  document.getElementById("bar").replaceChildren(...own.filter((model) => model.bytes).map((model) => {
    const part = element("span");
    part.style.flexBasis = `${100 * model.bytes / list.budget_bytes}%`;
    part.title = `${model.id}: ${size(model.bytes)}`;
    return part;
  }));
}

document.getElementById("key").addEventListener("submit", (event) => {
  event.preventDefault();
  key = document.getElementById("given").value;
  sessionStorage.setItem("key", key);
  document.getElementById("key").hidden = true;
  refresh();
});

refresh();
setInterval(refresh, PERIOD_MS);

// The frame of the page: tabs, API key, health. Each tab is a module of its own.

import { startChat } from "./chat.js";
import { showConfiguration } from "./configuration.js";
import { find } from "./elements.js";
import { startLive, stopLive, watch } from "./live.js";
import { apiKey, get, onRefusedKey, setApiKey } from "./server.js";

const TABS = { chat: () => {}, live: startLive, configuration: showConfiguration };
const HEALTH_MS = 5000;

let current = null;
let isServing = null; // null until the first answer of /live

function show(wanted) {
  current = wanted in TABS ? wanted : "chat";
  for (const tab of tabs()) {
    const isShown = tab.dataset.tab === current;
    tab.setAttribute("aria-selected", String(isShown));
    tab.tabIndex = isShown ? 0 : -1;
  }
  for (const each of Object.keys(TABS)) find(each).hidden = each !== current;
  stopLive();
  TABS[current]();
}

function tabs() {
  return [...document.querySelectorAll("[role=tab]")];
}

function moveToTab(event) {
  const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
  if (!step) return;
  const all = tabs();
  const next = all[(all.indexOf(event.target) + step + all.length) % all.length];
  location.hash = next.dataset.tab;
  next.focus();
}

function showHealth(words, kind, title) {
  const badge = find("health");
  if (badge.textContent !== words) badge.textContent = words;
  badge.className = `badge ${kind}`;
  badge.title = title;
}

function healthTitle(health) {
  const holders = (health.holders ?? []).map((each) => `${each.reason} by ${each.holder}, until ${each.ends_with}`);
  return [...holders, `Engine restarts: ${health.engine_restarts}`].join("; ");
}

async function checkHealth() {
  const before = isServing;
  try {
    const health = await get("live?look");
    isServing = health.state === "serving";
    showHealth(health.state, isServing ? "good" : "warn", healthTitle(health));
  } catch (error) {
    isServing = false;
    showHealth(error.status === 503 ? "not serving" : "unreachable", "bad", error.message);
  }
  if (isServing && before === false) again(); // another server may have come up at this address
}

async function showModel() {
  try {
    const models = await get("v1/models");
    const [model] = models.data;
    find("model").textContent = model.id;
    find("model").dataset.name = model.id;
    // A server that does not tell refuses pictures itself, if it must.
    find("model").dataset.sees = model.input_modalities?.includes("image") ?? true ? "yes" : "no";
    find("attach").hidden = find("model").dataset.sees === "no";
    find("model").title = [`up to ${model.max_model_len} tokens`, model.response_format].filter(Boolean).join("; ");
    find("model_name").textContent = model.id;
    if (apiKey()) askForKey("The API key of this tab:", true);
    else find("keyform").hidden = true;
  } catch (error) {
    if (error.status !== 401) find("model").textContent = error.message;
  }
}

function again() {
  showModel();
  TABS[current]();
}

function askForKey(why, isQuiet) {
  find("why_key").textContent = why;
  find("keyform").classList.toggle("quiet", Boolean(isQuiet));
  find("keyform").hidden = false;
}

onRefusedKey(() => {
  const isAsked = !find("keyform").hidden && !find("keyform").classList.contains("quiet");
  askForKey(apiKey() ? "The server does not know this API key." : "This server asks for an API key.");
  if (!isAsked) find("key").focus();
});

find("keyform").addEventListener("submit", (event) => {
  event.preventDefault();
  setApiKey(find("key").value.trim());
  again();
});
for (const tab of tabs()) {
  tab.addEventListener("click", () => { location.hash = tab.dataset.tab; });
  tab.addEventListener("keydown", moveToTab);
}
addEventListener("hashchange", () => show(location.hash.slice(1)));
for (const event of ["online", "offline", "visibilitychange"]) addEventListener(event, checkHealth);
find("key").value = apiKey();
startChat();
watch();
showModel();
checkHealth();
setInterval(() => { if (!document.hidden) checkHealth(); }, HEALTH_MS);
show(location.hash.slice(1));
if (current === "chat" && find("keyform").hidden) find("question").focus();

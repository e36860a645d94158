// The frame of the page: tabs, key, health. Each tab is a module of its own.

import { startChat } from "./chat.js";
import { showConfiguration } from "./configuration.js";
import { find } from "./elements.js";
import { startLive, stopLive } from "./live.js";
import { apiKey, get, setApiKey } from "./server.js";

const TABS = { chat: () => {}, live: startLive, configuration: showConfiguration };
const HEALTH_MS = 5000;

function show(wanted) {
  const name = wanted in TABS ? wanted : "chat";
  for (const tab of document.querySelectorAll("[role=tab]")) {
    tab.setAttribute("aria-selected", String(tab.dataset.tab === name));
  }
  for (const each of Object.keys(TABS)) find(each).hidden = each !== name;
  stopLive();
  TABS[name]();
}

async function checkHealth() {
  const badge = find("health");
  try {
    const health = await get("health");
    badge.textContent = health.state;
    badge.className = `badge ${health.state === "serving" ? "good" : "warn"}`;
    badge.title = `Engine restarts: ${health.engine_restarts}`;
  } catch (error) {
    badge.textContent = error.status === 503 ? "not serving" : "unreachable";
    badge.className = "badge bad";
    badge.title = error.message;
  }
}

async function showModel() {
  try {
    const models = await get("v1/models");
    find("model").textContent = models.data[0].id;
    find("model").dataset.name = models.data[0].id;
    find("model").title = models.data[0].response_format;
    find("key").hidden = !apiKey();
  } catch (error) {
    if (error.status === 401) find("key").hidden = false;
    find("model").textContent = error.message;
  }
}

for (const tab of document.querySelectorAll("[role=tab]")) {
  tab.addEventListener("click", () => { location.hash = tab.dataset.tab; });
}
addEventListener("hashchange", () => show(location.hash.slice(1)));
find("key").value = apiKey();
find("key").addEventListener("change", () => {
  setApiKey(find("key").value.trim());
  showModel();
});
find("keyform").addEventListener("submit", (event) => event.preventDefault());
startChat();
showModel();
checkHealth();
setInterval(() => { if (!document.hidden) checkHealth(); }, HEALTH_MS);
show(location.hash.slice(1));

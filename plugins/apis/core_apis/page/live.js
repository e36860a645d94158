// The live view: rates and gauges from /metrics, and the timeline of requests. Figures are also gathered, less often, while it is
// hidden, so that it shows the recent past when it is opened.

import { sparkline, timeline } from "./charts.js";
import { find, make } from "./elements.js";
import { get, metrics } from "./server.js";

const PERIOD_MS = 1000;
const HIDDEN_PERIODS = 3; // periods between two polls while the view is hidden
const KEPT_S = 120;
const WINDOW_S = 60;
const LEAST_S = 10; // seconds that a chart spans
const MOST_ROWS = 40;

const TILES = [
  { name: "Tokens a second", value: (now, before, seconds) => rate("core:generation_tokens_total", now, before, seconds) },
  { name: "Prompt tokens a second", value: (now, before, seconds) => rate("core:prompt_tokens_total", now, before, seconds) },
  { name: "Running", value: (now) => sum(now, "core:num_requests_running") },
  { name: "Waiting", value: (now) => sum(now, "core:num_requests_waiting") },
  { name: "KV cache in use", value: (now) => 100 * largest(now, "core:kv_cache_usage_perc"), unit: "%" },
  { name: "Prefix hits since the start", value: hitRate, unit: "%" },
  { name: "First token, mean", value: (now, before) => mean("core:time_to_first_token_seconds", now, before), unit: "ms", isMean: true },
  { name: "Between tokens, mean", value: (now, before) => mean("core:inter_token_latency_seconds", now, before), unit: "ms", isMean: true },
];

let isShown = false;
let isLooking = false; // at most one poll at a time, in case the server is slow
let periods = 0;
let last = null; // { at, values }: the metrics of the previous poll
let shown = [];

function sum(values, name) {
  return (values[name] ?? []).reduce((total, sample) => total + sample.value, 0);
}

function largest(values, name) {
  return Math.max(0, ...(values[name] ?? []).map((sample) => sample.value));
}

function growth(name, now, before) {
  return Math.max(0, sum(now, name) - sum(before, name));
}

function rate(name, now, before, seconds) {
  return growth(name, now, before) / seconds;
}

// The mean in milliseconds; null while nothing was measured.
function mean(name, now, before) {
  const count = growth(`${name}_count`, now, before);
  return count ? (1000 * growth(`${name}_sum`, now, before)) / count : null;
}

// The hit rate over all tokens that were looked up since the start.
function hitRate(now) {
  const asked = sum(now, "core:prefix_cache_queries_total");
  return asked ? (100 * sum(now, "core:prefix_cache_hits_total")) / asked : 0;
}

function makeTiles() {
  shown = TILES.map((tile) => {
    const number = make("div", { class: "number" }, "–");
    const picture = make("div", { class: "picture" });
    const card = make("div", { class: "card tile" }, make("div", { class: "dim" }, tile.name), number, picture);
    return { tile, number, picture, card, history: [], latest: null };
  });
  find("tiles").replaceChildren(...shown.map((each) => each.card));
}

function words(value, unit) {
  const digits = value >= 100 || Number.isInteger(value) ? 0 : 1;
  return [value.toFixed(digits), unit ? make("span", { class: "unit" }, ` ${unit}`) : ""];
}

// Metrics that shrank belong to a restarted server.
function isAnew(values) {
  return sum(values, "core:generation_tokens_total") < sum(last.values, "core:generation_tokens_total");
}

// Means begin with those since the start of the server; rates need a second poll.
function gather(values, at) {
  const before = last && !isAnew(values) ? last : null;
  for (const each of shown) {
    if (before || each.tile.isMean) {
      const value = each.tile.value(values, before?.values ?? {}, (at - (before?.at ?? at)) / 1000);
      if (value !== null) each.latest = value;
      if (each.latest === null) continue; // nothing was measured yet
      each.history.push({ at, value: each.latest });
      each.history = each.history.filter((point) => at - point.at <= KEPT_S * 1000);
    }
  }
  last = { at, values };
}

function showMetrics() {
  for (const each of shown) {
    if (!each.history.length) continue;
    each.number.replaceChildren(...words(each.latest, each.tile.unit));
    const from = Math.min(each.history[0].at, last.at - LEAST_S * 1000);
    each.picture.replaceChildren(sparkline(each.history, from, last.at));
  }
}

function label(request) {
  const cached = request.num_cached_tokens ? `, ${request.num_cached_tokens} of them cached` : "";
  const state = request.reason ?? "running";
  return `${request.id}: ${request.num_prompt_tokens} prompt tokens${cached}; ${request.num_tokens} tokens; ${state}`;
}

// The requests, newest first, over the time in which they ran.
function showRequests({ now, requests }) {
  const recent = requests.filter((request) => (request.end ?? now) >= now - WINDOW_S).slice(-MOST_ROWS).reverse();
  const first = Math.min(now - LEAST_S, ...recent.map((request) => request.begin));
  const rows = recent.map((request) => ({
    label: label(request),
    note: request.num_tokens ? `${request.num_prompt_tokens} + ${request.num_tokens}` : "",
    begin: request.begin,
    middle: request.first_token,
    end: request.end ?? now,
    kind: request.reason === null ? "running" : ["stop", "length"].includes(request.reason) ? "done" : "ended",
  }));
  const room = find("timeline");
  if (rows.length) room.replaceChildren(timeline(rows, Math.max(first, now - WINDOW_S), now, room.clientWidth || 600));
  else room.replaceChildren(make("p", { class: "dim" }, "No request in the last minute."));
}

async function look() {
  periods += 1;
  if (document.hidden || isLooking || (!isShown && periods % HIDDEN_PERIODS)) return;
  isLooking = true;
  try {
    gather(await metrics(), performance.now());
    if (isShown) {
      showMetrics();
      showRequests(await get("live/requests?look"));
    }
    find("live_error").hidden = true;
  } catch (error) {
    find("live_error").textContent = error.message;
    find("live_error").hidden = false;
    last = null; // rates start again
  } finally {
    isLooking = false;
  }
}

export function watch() {
  makeTiles();
  look();
  setInterval(look, PERIOD_MS);
}

export function startLive() {
  isShown = true;
  if (last) showMetrics();
  look();
}

export function stopLive() {
  isShown = false;
}

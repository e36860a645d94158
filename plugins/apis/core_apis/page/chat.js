// The chat: questions, streamed answers, and tools whose results the user enters.

import { Conversation, mistake } from "./conversation.js";
import { find, make } from "./elements.js";
import { Message } from "./message.js";
import { AttachedPictures, contentOf, picturesOf, textOf } from "./pictures.js";
import { stream } from "./server.js";
import { requestBody, startSettings } from "./settings.js";

let chat = null;
let attached = null; // the pictures of the next question
let running = null; // the AbortController of the answer that is being written

function busy(isBusy) {
  find("send").hidden = isBusy;
  find("stop").hidden = !isBusy;
  find("chat").classList.toggle("busy", isBusy);
  find("conversation").setAttribute("aria-busy", String(isBusy));
}

function figures(usage, begin, first) {
  const seconds = (performance.now() - first) / 1000;
  const rate = usage.completion_tokens > 1 && seconds > 0 ? (usage.completion_tokens - 1) / seconds : 0;
  const cached = usage.prompt_tokens_details?.cached_tokens;
  const parts = [
    `${usage.prompt_tokens} + ${usage.completion_tokens} tokens`,
    cached ? `${cached} from the cache` : "",
    `first after ${Math.round(first - begin)} ms`,
    rate ? `${rate.toFixed(0)} tokens a second` : "",
  ];
  return parts.filter(Boolean).join(" · ");
}

// Renders new text at most once per frame, however fast tokens come.
function painter(shown) {
  let frame = 0;
  const paint = () => {
    frame = 0;
    shown.render();
    chat.follow();
  };
  return {
    ask: () => { frame ||= requestAnimationFrame(paint); },
    cancel: () => cancelAnimationFrame(frame),
  };
}

// Streams an answer into `shown`; returns how it ended: null, "stopped" or the error.
async function receive(body, shown, signal) {
  const picture = painter(shown);
  const begin = performance.now();
  const told = { first: null, usage: null, trouble: null };
  try {
    await stream("v1/chat/completions", body, signal, (event) => {
      told.first ??= performance.now();
      told.usage = event.usage ?? told.usage;
      (event.choices ?? []).forEach((choice) => shown.add(choice));
      picture.ask();
    });
  } catch (error) {
    told.trouble = error;
  }
  picture.cancel();
  const words = told.usage && told.first !== null ? figures(told.usage, begin, told.first) : "";
  return { trouble: told.trouble, words };
}

async function answer() {
  let body;
  try {
    body = requestBody(chat.messages);
  } catch (error) {
    chat.put(mistake(error, again));
    return;
  }
  const mine = new AbortController();
  running = mine;
  busy(true);
  const shown = new Message("assistant");
  shown.element.classList.add("writing");
  chat.put(shown.element);
  chat.showEnd();
  find("status").textContent = "The model is writing.";
  const { trouble, words } = await receive(body, shown, mine.signal);
  if (running !== mine) return; // a new chat has begun
  running = null;
  busy(false);
  finish(shown, trouble, words);
}

function finish(shown, trouble, words) {
  const isStopped = trouble?.name === "AbortError";
  shown.element.classList.remove("writing");
  shown.end(trouble ? (isStopped ? "stopped" : "broken") : null, words);
  const said = shown.said();
  if (said) chat.add(said, shown);
  else shown.element.remove();
  find("status").textContent = said ? "The answer is complete." : "There is no answer.";
  if (trouble && !isStopped) chat.put(mistake(trouble, again));
  else if (!said) chat.put(mistake(new Error(isStopped ? "Stopped before the answer began." : "The model wrote nothing."), again));
  askForResults(said?.tool_calls ?? []);
  chat.follow();
}

// Shows a form in which the user enters the results of tool calls.
function askForResults(calls) {
  if (!calls.length) return;
  const fields = calls.map((call) => make("textarea", { rows: 2, "aria-label": `Result of ${call.function.name}` }));
  const labels = calls.map((call, index) => make("label", {}, `Result of ${call.function.name}`, fields[index]));
  const form = make("form", { class: "results notice" }, ...labels, make("button", { type: "submit" }, "Give results"));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    form.remove();
    calls.forEach((call, index) => chat.add({ role: "tool", tool_call_id: call.id, content: fields[index].value }));
    answer();
  });
  chat.put(form);
  fields[0].focus();
}

function ask() {
  const text = find("question").value;
  if (running || (!text.trim() && !attached.urls.length)) return;
  find("question").value = "";
  if (matchMedia("(max-width: 560px)").matches) find("settings").open = false; // the answer needs the space
  chat.clean();
  chat.add({ role: "user", content: contentOf(text, attached.take()) });
  answer();
}

// Generates the last answer again.
function again() {
  if (running) return;
  const last = chat.turns.at(-1);
  if (last?.message.role === "assistant") chat.cutBefore(last);
  else chat.clean();
  if (chat.turns.length) answer();
}

function actions(turn) {
  if (turn.message.role === "assistant") return [["Retry", () => retry(turn)]];
  return turn.message.role === "user" ? [["Edit", () => edit(turn)]] : [];
}

function retry(turn) {
  if (running) return;
  chat.cutBefore(turn);
  answer();
}

// Replaces a question by a form; the turns after it are removed when the form is sent.
function edit(turn) {
  if (running) return;
  const { element } = turn.shown;
  const field = make("textarea", { rows: 3, dir: "auto", "aria-label": "Changed question" });
  field.value = textOf(turn.message.content);
  const urls = picturesOf(turn.message.content);
  const cancel = make("button", { type: "button" }, "Cancel");
  const form = make("form", { class: "edit" }, field, make("div", { class: "row" }, make("button", { type: "submit", class: "main" }, "Send"), cancel));
  const leave = () => {
    form.replaceWith(element);
    find("question").focus();
  };
  const send = () => {
    if (running || (!field.value.trim() && !urls.length)) return;
    form.replaceWith(element);
    chat.cutBefore(turn);
    chat.add({ role: "user", content: contentOf(field.value, urls) });
    answer();
    find("question").focus();
  };
  cancel.addEventListener("click", leave);
  field.addEventListener("keydown", (event) => {
    if (event.key === "Escape") leave();
    sendOnEnter(event, send);
  });
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    send();
  });
  element.replaceWith(form);
  field.focus();
}

function sendOnEnter(event, send) {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  send();
}

function clear() {
  running?.abort();
  running = null;
  chat.clear();
  attached.take();
  busy(false);
  find("status").textContent = "A new chat.";
  find("question").focus();
}

export function startChat() {
  chat = new Conversation(actions);
  attached = new AttachedPictures();
  startSettings();
  find("compose").addEventListener("submit", (event) => {
    event.preventDefault();
    ask();
  });
  find("question").addEventListener("keydown", (event) => sendOnEnter(event, ask));
  find("stop").addEventListener("click", () => {
    running?.abort();
    find("question").focus();
  });
  addEventListener("keydown", (event) => {
    if (event.key === "Escape") running?.abort();
  });
  find("clear").addEventListener("click", clear);
  for (const example of document.querySelectorAll(".example")) {
    example.addEventListener("click", () => {
      find("question").value = example.textContent;
      ask();
    });
  }
  chat.restore();
  const last = chat.turns.at(-1);
  if (last?.message.role === "user") chat.put(mistake(new Error("The page was loaded again before the answer came."), again));
  askForResults(last?.message.tool_calls ?? []);
}

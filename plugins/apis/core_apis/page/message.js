// One message on the page: text, reasoning, calls and the model's confidence in each token.

import { copyButton } from "./copying.js";
import { make } from "./elements.js";
import { TokenStrip } from "./logprobs.js";
import { GrowingText } from "./markdown.js";
import { picturesOf, textOf, thumbnail } from "./pictures.js";

const NAMES = { user: "You", assistant: "Model", tool: "Tool" };
const ENDS = {
  length: "cut at the most tokens of an answer",
  abort: "ended by the server",
  stopped: "stopped",
  broken: "broke off",
};

export class Message {
  constructor(role) {
    this.role = role;
    this.text = "";
    this.pictures = []; // addresses
    this.reasoning = "";
    this.calls = [];
    this.reason = null;
    this.strip = null;
    this.body = make("div", { class: "text" });
    this.grown = new GrowingText(this.body);
    this.thoughts = make("div", { class: "thoughts", dir: "auto" });
    this.thinking = make("details", { class: "reasoning", open: "" }, make("summary", {}, "Reasoning"), this.thoughts);
    this.thinking.hidden = true;
    this.tools = make("div");
    this.sureness = make("div", { class: "foot" });
    this.actions = make("div", { class: "actions" });
    const name = make("h2", { class: "who" }, NAMES[role]);
    const parts = [name, this.thinking, this.body, this.tools, this.sureness, this.actions];
    this.element = make("article", { class: role, "aria-label": NAMES[role] }, ...parts);
  }

  // Shows a whole message in the form of the API.
  static of(message) {
    const made = new Message(message.role);
    made.text = textOf(message.content);
    made.pictures = picturesOf(message.content);
    made.reasoning = message.reasoning ?? "";
    (message.tool_calls ?? []).forEach((call, index) => made.addCall({ ...call, index }));
    made.render();
    made.thinking.open = false;
    return made;
  }

  // Adds a choice of a streamed event.
  add(choice) {
    const { delta } = choice;
    this.reasoning += delta.reasoning ?? delta.reasoning_content ?? "";
    if (delta.content && !this.text) this.thinking.open = false;
    this.text += delta.content ?? "";
    for (const part of delta.tool_calls ?? []) this.addCall(part);
    for (const token of choice.logprobs?.content ?? []) {
      this.strip ??= new TokenStrip(this.sureness);
      this.strip.add(token);
    }
    this.reason = choice.finish_reason ?? this.reason;
  }

  addCall(part) {
    let call = this.calls[part.index];
    if (!call) {
      call = { id: part.id, type: "function", function: { name: "", arguments: "" }, shown: make("pre", { class: "call", tabindex: 0 }) };
      this.calls[part.index] = call;
      this.tools.append(call.shown);
    }
    call.function.name += part.function?.name ?? "";
    call.function.arguments += part.function?.arguments ?? "";
    call.shown.textContent = `${call.function.name}(${call.function.arguments})`;
  }

  render() {
    if (this.reasoning) {
      this.thinking.hidden = false;
      this.thoughts.textContent = this.reasoning;
    }
    if (this.role === "assistant") this.grown.show(this.text);
    else this.body.replaceChildren(...this.shown());
    this.strip?.draw();
  }

  // Returns the pictures and the text of a message that no model wrote.
  shown() {
    const pictures = this.pictures.map((url, index) => thumbnail(url, `Picture ${index + 1}`));
    const parts = pictures.length ? [make("div", { class: "row" }, ...pictures)] : [];
    if (this.text || !parts.length) parts.push(make("p", { dir: "auto" }, this.text));
    return parts;
  }

  // Marks the message as complete. outcome: "stopped" or "broken"; null if the model ended it. figures: text about tokens and times.
  end(outcome, figures) {
    this.render();
    this.thinking.open = false;
    const how = ENDS[outcome ?? this.reason];
    if (how) this.actions.append(make("span", { class: "warn" }, how));
    if (figures) this.actions.append(make("span", { class: "dim figures" }, figures));
  }

  // Adds buttons for the actions on the message. others: [label, action].
  offer(others) {
    const buttons = others.map(([label, action]) => make("button", { type: "button", class: "quiet", onclick: action }, label));
    this.actions.prepend(copyButton(() => this.text, "Copy message"), ...buttons);
  }

  // Returns the message for the next request; null if it is empty.
  said() {
    const calls = this.reason === null ? [] : this.calls; // calls of an answer that broke off may be truncated
    if (!this.text && !this.reasoning && !calls.length) return null;
    const message = { role: "assistant", content: this.text };
    if (this.reasoning) message.reasoning = this.reasoning;
    if (calls.length) message.tool_calls = calls.map(({ shown, ...call }) => call);
    return message;
  }
}

// One message on the page: text, reasoning, calls and how sure the model was of each token.

import { make } from "./elements.js";
import { TokenStrip } from "./logprobs.js";

const NAMES = { user: "You", assistant: "Model", tool: "Tool" };

export class Message {
  constructor(role) {
    this.role = role;
    this.text = "";
    this.reasoning = "";
    this.calls = [];
    this.reason = null;
    this.strip = null;
    this.body = make("div", { class: "text" });
    this.thoughts = make("pre");
    this.thinking = make("details", { class: "reasoning", open: "" }, make("summary", {}, "Reasoning"), this.thoughts);
    this.thinking.hidden = true;
    this.tools = make("div");
    this.foot = make("div", { class: "foot" });
    const name = make("div", { class: "who" }, NAMES[role]);
    this.element = make("article", { class: role }, name, this.thinking, this.body, this.tools, this.foot);
  }

  setText(text) {
    this.text = text;
    this.body.replaceChildren(...blocks(text));
  }

  // A choice of a streamed event.
  add(choice) {
    const { delta } = choice;
    const reasoning = delta.reasoning ?? delta.reasoning_content;
    if (reasoning) {
      this.reasoning += reasoning;
      this.thinking.hidden = false;
      this.thoughts.textContent = this.reasoning;
    }
    if (delta.content) {
      if (!this.text) this.thinking.open = false;
      this.setText(this.text + delta.content);
    }
    for (const part of delta.tool_calls ?? []) this.addCall(part);
    for (const token of choice.logprobs?.content ?? []) {
      this.strip ??= new TokenStrip(this.foot);
      this.strip.add(token);
    }
    this.reason = choice.finish_reason ?? this.reason;
  }

  addCall(part) {
    let call = this.calls[part.index];
    if (!call) {
      call = { id: part.id, type: "function", function: { name: "", arguments: "" }, shown: make("pre", { class: "call" }) };
      this.calls[part.index] = call;
      this.tools.append(call.shown);
    }
    call.function.name += part.function?.name ?? "";
    call.function.arguments += part.function?.arguments ?? "";
    call.shown.textContent = `${call.function.name}(${call.function.arguments})`;
  }

  end() {
    this.thinking.open = false;
    if (this.reason === "length") this.foot.append(make("span", { class: "dim" }, "cut at the most tokens"));
  }

  // The message as the next request carries it; null when there is nothing in it.
  said() {
    const calls = this.reason === null ? [] : this.calls; // those of an answer that broke off may be cut
    if (!this.text && !this.reasoning && !calls.length) return null;
    const message = { role: "assistant", content: this.text };
    if (this.reasoning) message.reasoning = this.reasoning;
    if (calls.length) message.tool_calls = calls.map(({ shown, ...call }) => call);
    return message;
  }
}

// Paragraphs, and code between fences; nothing else of what a model writes is given a form.
function blocks(text) {
  return text.split("```").map((part, index) => {
    if (index % 2 === 0) return make("p", {}, part.trim());
    const lines = part.split("\n");
    const code = lines.length > 1 ? lines.slice(1).join("\n") : part;
    return make("pre", {}, code);
  });
}

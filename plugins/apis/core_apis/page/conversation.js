// The turns of a chat, on the page and as the next request carries them. A tab keeps them when it is loaded again.

import { find, make } from "./elements.js";
import { keep, kept } from "./keeping.js";
import { Message } from "./message.js";

const KEPT = "core-chat";
const NEAR_END = 60; // pixels

export class Conversation {
  // actions: of a message that is whole, (turn) => [[label, action]].
  constructor(actions) {
    this.actions = actions;
    this.turns = []; // {message: as the API wants it, shown: Message}
    this.room = find("conversation");
    this.lastY = 0; // where the page was scrolled to
    this.followed = true; // the end is kept in view, unless the reader has scrolled up
    addEventListener("scroll", () => this.look(), { passive: true });
    addEventListener("resize", () => this.look(), { passive: true });
    this.room.addEventListener("toggle", () => this.follow(), true); // something was unfolded
    find("to_end").addEventListener("click", () => this.showEnd());
  }

  // Whoever moves up, however little, reads; whoever comes near the end again follows.
  look() {
    const below = document.documentElement.scrollHeight - innerHeight - scrollY;
    if (scrollY < this.lastY && below > 4) this.followed = false;
    else if (below <= 4 || (scrollY > this.lastY && below <= NEAR_END)) this.followed = true;
    this.lastY = scrollY;
    find("to_end").hidden = this.followed || find("chat").hidden;
  }

  showEnd() {
    this.followed = true;
    scrollTo(0, document.documentElement.scrollHeight);
  }

  follow() {
    if (this.followed) this.showEnd();
    else this.look();
  }

  get messages() {
    return this.turns.map((turn) => turn.message);
  }

  // What is shown but not said: a message that is being written, a mistake, a form.
  put(element) {
    this.greet();
    this.room.append(element);
    this.follow();
  }

  add(message, shown = Message.of(message)) {
    const turn = { message, shown };
    this.turns.push(turn);
    this.room.append(shown.element);
    shown.offer(this.actions(turn));
    this.changed();
  }

  // Without this turn and all behind it.
  cutBefore(turn) {
    const place = this.turns.indexOf(turn);
    if (place < 0) return;
    this.turns.length = place;
    this.clean();
    this.changed();
  }

  // Without mistakes, forms and messages that nobody has said.
  clean() {
    const said = new Set(this.turns.map((turn) => turn.shown.element));
    for (const element of [...this.room.children]) {
      if (!said.has(element)) element.remove();
    }
  }

  clear() {
    this.turns = [];
    this.clean();
    this.changed();
    this.followed = true;
    this.look();
  }

  restore() {
    const before = kept(KEPT);
    if (Array.isArray(before)) before.forEach((message) => this.add(message));
    this.greet();
    this.showEnd();
  }

  changed() {
    keep(KEPT, this.messages);
    this.greet();
  }

  greet() {
    find("welcome").hidden = this.turns.length > 0;
  }
}

export function mistake(error, retry) {
  const parts = [make("p", { dir: "auto" }, error.message)];
  if (retry) parts.push(make("button", { type: "button", onclick: retry }, "Try again"));
  return make("div", { class: "error notice", role: "alert" }, ...parts);
}

// The turns of a chat, on the page and in the next request. They survive a reload of the tab.

import { find, make } from "./elements.js";
import { keep, kept } from "./keeping.js";
import { Message } from "./message.js";

const KEPT = "core-chat";
const NEAR_END = 60; // pixels

export class Conversation {
  // actions: of a complete message, (turn) => [[label, action]].
  constructor(actions) {
    this.actions = actions;
    this.turns = []; // {message: in the form of the API, shown: Message}
    this.room = find("conversation");
    this.lastY = 0; // the last scroll position
    this.followed = true; // whether the end is kept in view: until the reader scrolls up
    addEventListener("scroll", () => this.look(), { passive: true });
    addEventListener("resize", () => this.look(), { passive: true });
    this.room.addEventListener("toggle", () => this.follow(), true); // something was unfolded
    find("to_end").addEventListener("click", () => this.showEnd());
  }

  // Scrolling up, however little, stops following; scrolling near the end resumes it.
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

  // Shows something that is not part of the chat: an unfinished message, an error, a form.
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

  // Removes this turn and all turns after it.
  cutBefore(turn) {
    const place = this.turns.indexOf(turn);
    if (place < 0) return;
    this.turns.length = place;
    this.clean();
    this.changed();
  }

  // Removes errors, forms and unfinished messages.
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

// The inline content of a paragraph: emphasis, code and links, as elements. Never markup: unknown syntax stays text.
// Every failed search for an end is remembered, so hostile text costs one pass instead of one for each of its characters.

import { make } from "./elements.js";

const DEPTH = 4; // emphasis inside of emphasis
const MARKERS = [["**", "strong"], ["__", "strong"], ["~~", "del"], ["*", "em"], ["_", "em"]];
const MOST_OF_LINK = 2000; // characters within which its end must be
const ESCAPED = /[\\`*_{}[\]()#+\-.!~|>]/;
const ADDRESS = /https?:\/\/[^\s<>"`]+/y;
const WORD = /[\p{L}\p{N}_]/u;

class Scanner {
  constructor(text, depth) {
    this.text = text;
    this.depth = depth;
    this.at = 0;
    this.plain = "";
    this.found = [];
    this.endless = new Set(); // marks without an end in the rest of the text
  }

  all() {
    while (this.at < this.text.length) {
      if (!(this.escape() || this.code() || this.link() || this.address() || this.emphasis())) {
        this.plain += this.text[this.at];
        this.at += 1;
      }
    }
    this.flush();
    return this.found;
  }

  flush() {
    if (this.plain) this.found.push(this.plain);
    this.plain = "";
  }

  put(element, end) {
    this.flush();
    this.found.push(element);
    this.at = end;
    return true;
  }

  inner(text) {
    return this.depth > 0 ? new Scanner(text, this.depth - 1).all() : [text];
  }

  // Returns the next position of `mark`; -1, at once, if an earlier search had no result.
  next(mark, from) {
    if (this.endless.has(mark)) return -1;
    const place = this.text.indexOf(mark, from);
    if (place < 0) this.endless.add(mark);
    return place;
  }

  escape() {
    const next = this.text[this.at + 1] ?? "";
    if (this.text[this.at] !== "\\" || !ESCAPED.test(next)) return false;
    this.plain += next;
    this.at += 2;
    return true;
  }

  code() {
    if (this.text[this.at] !== "`") return false;
    let size = 1;
    while (this.text[this.at + size] === "`") size += 1;
    const begin = this.at + size;
    const end = this.next("`".repeat(size), begin);
    if (end < 0) {
      this.plain += "`".repeat(size);
      this.at = begin;
      return true;
    }
    return this.put(make("code", {}, this.text.slice(begin, end)), end + size);
  }

  // Reads [text](address). An image becomes a link, since nothing is loaded from other servers.
  link() {
    const isImage = this.text.startsWith("![", this.at);
    if (!isImage && this.text[this.at] !== "[") return false;
    const begin = this.at + (isImage ? 2 : 1);
    const near = this.text.slice(begin, begin + MOST_OF_LINK);
    const middle = near.indexOf("](");
    const end = middle < 0 ? -1 : near.indexOf(")", middle);
    if (end < 0) return false;
    const words = near.slice(0, middle);
    const address = near.slice(middle + 2, end).trim().split(/\s/, 1)[0];
    if (words.includes("\n") || words.includes("[") || !/^https?:\/\/\S/i.test(address)) return false;
    const shown = isImage ? [`image: ${words || address}`] : this.inner(words);
    return this.put(anchor(address, shown), begin + end + 1);
  }

  address() {
    if (this.text[this.at] !== "h" || WORD.test(this.text[this.at - 1] ?? "")) return false;
    ADDRESS.lastIndex = this.at;
    const found = ADDRESS.exec(this.text);
    if (!found) return false;
    const address = found[0].replace(/[.,;:!?)\]*_]{1,20}$/, "");
    return this.put(anchor(address, [address]), this.at + address.length);
  }

  emphasis() {
    const found = MARKERS.find(([mark]) => this.text.startsWith(mark, this.at));
    if (!found) return false;
    const [mark, name] = found;
    const begin = this.at + mark.length;
    const end = this.canOpen(mark, begin) ? this.closing(mark, begin) : -1;
    if (end < 0) {
      this.plain += mark;
      this.at = begin;
      return true;
    }
    return this.put(make(name, {}, this.inner(this.text.slice(begin, end))), end + mark.length);
  }

  canOpen(mark, begin) {
    const isInWord = mark.length === 1 && WORD.test(this.text[this.at - 1] ?? ""); // a_b_c, 2*3*4
    return !isInWord && /\S/.test(this.text[begin] ?? " ");
  }

  closing(mark, begin) {
    let end = this.next(mark, begin + 1);
    while (end >= 0) {
      const isAfterSpace = /\s/.test(this.text[end - 1]);
      const isInWord = mark[0] === "_" && WORD.test(this.text[end + mark.length] ?? "");
      const isOfLonger = mark.length === 1 && this.text[end + 1] === mark;
      if (!isAfterSpace && !isInWord && !isOfLonger) return this.lastOfRun(mark, end);
      end = this.next(mark, end + (isOfLonger ? 2 : mark.length));
    }
    this.endless.add(mark);
    return -1;
  }

  // In ***words*** the outer pair is the longer one.
  lastOfRun(mark, end) {
    let last = end;
    while (mark.length === 2 && this.text[last + 2] === mark[0]) last += 1;
    return last;
  }
}

function anchor(address, shown) {
  return make("a", { href: address, target: "_blank", rel: "noopener noreferrer nofollow", title: address }, shown);
}

export function inline(text) {
  return new Scanner(text, DEPTH).all();
}

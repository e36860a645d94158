// The model's confidence: a strip with a bar for each token, and the alternatives of the token under the pointer.

import { draw, make } from "./elements.js";

const BAR = 5;
const HEIGHT = 36;
const NEAR = 8; // tokens shown around the selected one

function probability(logprob) {
  return Math.min(1, Math.exp(logprob));
}

function level(share) {
  if (share >= 0.8) return "sure";
  return share >= 0.4 ? "likely" : "unsure";
}

function visible(token) {
  return token.replaceAll("\n", "⏎").replaceAll(" ", "␣") || "∅";
}

export class TokenStrip {
  constructor(parent) {
    this.tokens = [];
    this.drawn = 0;
    this.picked = -1;
    this.svg = draw("svg", { class: "strip", height: HEIGHT, width: 0, role: "img", "aria-label": "Probability of each token" });
    this.alternatives = make("div", { class: "alternatives", role: "status" });
    const hint = "Left and right go from token to token";
    this.scroll = make("div", { class: "scroll", tabindex: 0, role: "group", "aria-label": hint, title: hint }, this.svg);
    this.mean = make("span");
    const summary = make("summary", {}, "How sure the model was ", this.mean);
    parent.append(make("details", { class: "sureness" }, summary, this.scroll, this.alternatives));
    for (const name of ["mousemove", "click"]) this.svg.addEventListener(name, (event) => this.pointed(event));
    this.scroll.addEventListener("keydown", (event) => this.moved(event));
  }

  // Adds a token of `logprobs.content`.
  add(token) {
    this.tokens.push(token);
  }

  // Draws the added tokens.
  draw() {
    const bars = this.tokens.slice(this.drawn).map((token, index) => {
      const share = probability(token.logprob);
      const height = Math.max(1, share * HEIGHT);
      const x = (this.drawn + index) * BAR;
      return draw("rect", { x, y: HEIGHT - height, width: BAR - 1, height, class: level(share) });
    });
    this.svg.append(...bars);
    this.drawn = this.tokens.length;
    this.svg.setAttribute("width", this.drawn * BAR);
    const total = this.tokens.reduce((sum, token) => sum + token.logprob, 0);
    this.mean.textContent = `· ${percent(Math.exp(total / this.drawn))} on average`; // the geometric mean: the inverse of perplexity
  }

  pointed(event) {
    this.show(Math.floor((event.clientX - this.svg.getBoundingClientRect().left) / BAR));
  }

  moved(event) {
    const step = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity }[event.key];
    if (!step) return;
    event.preventDefault();
    this.show(Math.min(this.drawn - 1, Math.max(0, this.picked + step)));
    this.scroll.scrollLeft = this.picked * BAR - this.scroll.clientWidth / 2;
  }

  show(index) {
    const token = this.tokens[index];
    if (!token || index === this.picked) return;
    this.svg.children[this.picked]?.classList.remove("picked");
    this.svg.children[index]?.classList.add("picked");
    this.picked = index;
    const said = (from, to) => this.tokens.slice(Math.max(0, from), to).map((each) => each.token).join("");
    const around = make("p", { class: "around", dir: "auto" }, `…${said(index - NEAR, index)}`, make("mark", {}, visible(token.token)), `${said(index + 1, index + NEAR)}…`);
    this.alternatives.replaceChildren(around, ...token.top_logprobs.map((each) => alternative(each, each.token === token.token)));
  }
}

function percent(share) {
  return `${(100 * share).toFixed(share < 0.1 ? 1 : 0)} %`;
}

function alternative(each, isChosen) {
  const share = probability(each.logprob);
  const meter = draw("svg", { width: 120, height: 10, "aria-hidden": "true" }, draw("rect", { width: 120 * share, height: 10, rx: 2, class: level(share) }));
  const name = make("code", { class: isChosen ? "chosen" : "" }, visible(each.token));
  return make("div", { class: "alternative" }, name, meter, percent(share));
}

// How sure the model was: a strip with a bar for each token, and the alternatives of the one that is pointed at.

import { draw, make } from "./elements.js";

const BAR = 5;
const HEIGHT = 36;

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
    this.count = 0;
    this.svg = draw("svg", { class: "strip", height: HEIGHT, width: 0, role: "img", "aria-label": "Probability of each token" });
    this.alternatives = make("div", { class: "alternatives" });
    const scroll = make("div", { class: "scroll" }, this.svg);
    const summary = make("summary", {}, "How sure the model was, token by token");
    parent.append(make("details", { class: "sureness", open: "" }, summary, scroll, this.alternatives));
  }

  // A token of `logprobs.content`.
  add(token) {
    const share = probability(token.logprob);
    const height = Math.max(1, share * HEIGHT);
    const left = this.count * BAR;
    const title = draw("title", {}, `${visible(token.token)} ${(100 * share).toFixed(1)}%`);
    const bar = draw(
      "rect",
      { x: left, y: HEIGHT - height, width: BAR - 1, height, class: level(share), onmouseenter: () => this.show(token), onclick: () => this.show(token) },
      title,
    );
    this.svg.append(bar);
    this.count += 1;
    this.svg.setAttribute("width", this.count * BAR);
  }

  show(token) {
    const rows = token.top_logprobs.map((each) => {
      const share = probability(each.logprob);
      const meter = draw("svg", { width: 120, height: 10 }, draw("rect", { width: 120 * share, height: 10, class: level(share) }));
      const name = make("code", { class: each.token === token.token ? "chosen" : "" }, visible(each.token));
      return make("div", { class: "alternative" }, name, meter, `${(100 * share).toFixed(1)}%`);
    });
    this.alternatives.replaceChildren(...rows);
  }
}

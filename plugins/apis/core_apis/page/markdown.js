// Markdown of model output: headings, lists, tables, quotes, code. Built of elements, never parsed as HTML.

import { copyButton } from "./copying.js";
import { make } from "./elements.js";
import { inline } from "./inline.js";

const DEPTH = 6; // nesting of lists and quotes
const FENCE = /^ {0,12}(`{3,}|~{3,})[ \t]*([^\s`]*)/;
const ITEM = /^(\s{0,24})([-*+]|\d{1,9}[.)])(\s+|$)/;
const HEADING = /^ {0,3}(#{1,6})\s+(.*)$/;
const QUOTE = /^ {0,3}> ?/;

function isRule(line) {
  return /^(-{3,}|\*{3,}|_{3,})$/.test(line.replace(/\s/g, ""));
}

function isTable(lines, at) {
  const below = lines[at + 1] ?? "";
  return lines[at].includes("|") && /^[\s|:-]+$/.test(below) && below.includes("|") && below.includes("-");
}

function beginsOther(lines, at) {
  const line = lines[at];
  return FENCE.test(line) || HEADING.test(line) || QUOTE.test(line) || ITEM.test(line) || isRule(line) || isTable(lines, at);
}

// Returns [kind, first line, line after the last one] of each block.
function divide(lines) {
  const found = [];
  let at = 0;
  while (at < lines.length) {
    if (!lines[at].trim()) {
      at += 1;
      continue;
    }
    const [kind, end] = extent(lines, at);
    found.push([kind, at, end]);
    at = end;
  }
  return found;
}

function extent(lines, at) {
  const line = lines[at];
  if (FENCE.test(line)) return ["code", endOfFence(lines, at)];
  if (HEADING.test(line)) return ["heading", at + 1];
  if (isRule(line)) return ["rule", at + 1];
  if (QUOTE.test(line)) return ["quote", run(lines, at, (index) => QUOTE.test(lines[index]))];
  if (ITEM.test(line)) return ["list", endOfList(lines, at)];
  if (isTable(lines, at)) return ["table", run(lines, at, (index) => lines[index].includes("|"))];
  return ["paragraph", run(lines, at + 1, (index) => lines[index].trim() && !beginsOther(lines, index))];
}

function run(lines, at, belongs) {
  let end = at;
  while (end < lines.length && belongs(end)) end += 1;
  return end;
}

function endOfFence(lines, at) {
  const mark = FENCE.exec(lines[at])[1];
  for (let index = at + 1; index < lines.length; index += 1) {
    const line = lines[index].trim();
    if (line.startsWith(mark) && !line.replaceAll(mark[0], "")) return index + 1;
  }
  return lines.length;
}

function kindOfItem(line) {
  return /\d/.test(ITEM.exec(line)[2]) ? "ol" : "ul";
}

// A list ends at a line after an empty one that is neither an item nor indented.
function endOfList(lines, at) {
  const kind = kindOfItem(lines[at]);
  let end = at;
  while (end < lines.length) {
    if (FENCE.test(lines[end]) && /^\s/.test(lines[end])) {
      end = endOfFence(lines, end);
      continue;
    }
    if (/^\S/.test(lines[end]) && ITEM.test(lines[end]) && kindOfItem(lines[end]) !== kind) break;
    const isPart = ITEM.test(lines[end]) || /^\s+\S/.test(lines[end]);
    const isLoose = lines[end].trim() && lines[end - 1]?.trim() && !beginsOther(lines, end);
    const goesOn = !lines[end].trim() && (ITEM.test(lines[end + 1] ?? "") || /^\s+\S/.test(lines[end + 1] ?? ""));
    if (!isPart && !isLoose && !goesOn) break;
    end += 1;
  }
  return end;
}

function code(lines) {
  const [, mark, language] = FENCE.exec(lines[0]);
  const last = lines.at(-1).trim();
  const isClosed = lines.length > 1 && last.startsWith(mark) && !last.replaceAll(mark[0], "");
  const text = lines.slice(1, isClosed ? -1 : undefined).join("\n");
  const head = make("div", { class: "codehead" }, make("span", {}, language || "text"), copyButton(() => text, "Copy code"));
  const label = language ? `Code, ${language}` : "Code";
  return make("div", { class: "code" }, head, make("pre", { tabindex: 0, role: "region", "aria-label": label, dir: "ltr" }, make("code", {}, text)));
}

function cells(line) {
  const trimmed = line.trim().replace(/^\|/, "").replace(/\|$/, "");
  return trimmed.split(/(?<!\\)\|/).map((cell) => cell.trim());
}

function table(lines) {
  const row = (name, line) => make("tr", {}, cells(line).map((cell) => make(name, { dir: "auto" }, inline(cell))));
  const body = lines.slice(2).map((line) => row("td", line));
  const whole = make("table", {}, make("thead", {}, row("th", lines[0])), make("tbody", {}, body));
  return make("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Table" }, whole);
}

function list(lines, depth) {
  const indent = ITEM.exec(lines[0])[1].length;
  const items = [];
  for (const line of lines) {
    const found = ITEM.exec(line);
    if (found && found[1].length <= indent + 1) items.push({ width: found[0].length || 2, lines: [line.slice(found[0].length)] });
    else items.at(-1).lines.push(dedent(line, items.at(-1).width));
  }
  const kind = kindOfItem(lines[0]);
  const shown = items.map((item) => make("li", {}, itemBody(item.lines, depth)));
  const start = kind === "ol" ? Number.parseInt(ITEM.exec(lines[0])[2], 10) : null;
  return make(kind, { start, dir: "auto" }, shown);
}

function dedent(line, width) {
  let cut = 0;
  while (cut < width && line[cut] === " ") cut += 1;
  return line.slice(line[0] === "\t" ? 1 : cut);
}

function itemBody(lines, depth) {
  const parts = blocks(lines.join("\n"), depth - 1);
  const isPlain = parts.length > 0 && parts[0].localName === "p";
  return isPlain ? [...parts[0].childNodes, ...parts.slice(1)] : parts;
}

function element(kind, lines, depth) {
  if (kind === "code") return code(lines);
  if (kind === "rule") return make("hr");
  if (kind === "table") return table(lines);
  if (kind === "heading") {
    const [, marks, words] = HEADING.exec(lines[0]);
    return make(`h${Math.min(6, marks.length + 2)}`, { dir: "auto" }, inline(words.replace(/\s#+$/, "")));
  }
  if (depth > 0 && kind === "list") return list(lines, depth);
  if (depth > 0 && kind === "quote") {
    const inside = lines.map((line) => line.replace(QUOTE, "")).join("\n");
    return make("blockquote", { dir: "auto" }, blocks(inside, depth - 1));
  }
  return make("p", { dir: "auto" }, inline(lines.join("\n")));
}

function blocks(text, depth) {
  const lines = text.split("\n");
  return divide(lines).map(([kind, begin, end]) => element(kind, lines.slice(begin, end), depth));
}

// A growing text: only changed blocks are built again, so a token at the end of a long answer costs no more than at its start.
export class GrowingText {
  constructor(room) {
    this.room = room;
    this.sources = [];
  }

  show(text) {
    const lines = text.replaceAll("\r", "").split("\n");
    const found = divide(lines).map(([kind, begin, end]) => [kind, lines.slice(begin, end)]);
    found.forEach(([kind, part], index) => {
      const source = part.join("\n");
      if (this.sources[index] === source) return;
      const made = element(kind, part, DEPTH);
      if (index < this.sources.length) this.room.children[index].replaceWith(made);
      else this.room.append(made);
      this.sources[index] = source;
    });
    this.sources.length = found.length;
    while (this.room.children.length > found.length) this.room.lastElementChild.remove();
  }
}

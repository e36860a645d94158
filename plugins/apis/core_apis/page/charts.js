// Small charts: a line of the latest values, and bars on a time axis.

import { draw } from "./elements.js";

// points: [{at, value}], milliseconds.
export function sparkline(points, from, to, width = 220, height = 42) {
  const most = Math.max(...points.map((point) => point.value), 1e-9);
  const x = (point) => (((point.at - from) / (to - from)) * width).toFixed(1);
  const places = points.map((point) => `${x(point)},${(height - 2 - (point.value / most) * (height - 6)).toFixed(1)}`);
  const line = draw("polyline", { points: places.join(" "), class: "line" });
  const area = draw("polygon", { points: `${x(points[0])},${height} ${places.join(" ")} ${width},${height}`, class: "area" });
  return draw("svg", { viewBox: `0 0 ${width} ${height}`, class: "spark", preserveAspectRatio: "none", "aria-hidden": "true" }, area, line);
}

const ROW = 17;
const NOTE = 90; // pixels reserved for a note
const AXIS = 18; // pixels above the rows
const TICKS = [2, 5, 10]; // seconds between two ticks
const MOST_TICKS = 6;

// rows: [{label, note, begin, middle, end, kind}], seconds; middle is null until there is one.
export function timeline(rows, from, to, width) {
  const scale = width / (to - from);
  const at = (time) => Math.max(0, (time - from) * scale);
  const height = rows.length * ROW + AXIS;
  const picture = draw("svg", { width, height, class: "timeline", role: "img", "aria-label": `${rows.length} requests over time` });
  const step = TICKS.find((each) => (to - from) / each <= MOST_TICKS) ?? TICKS.at(-1);
  for (let ago = step; ago < to - from; ago += step) {
    const x = at(to - ago);
    const text = draw("text", { x: x + 3, y: 11 }, `−${ago} s`);
    picture.append(draw("line", { x1: x, x2: x, y1: 0, y2: height, class: "tick" }), text);
  }
  rows.forEach((row, index) => {
    const y = AXIS + index * ROW + 2;
    const middle = row.middle ?? row.end;
    const waiting = Math.max(1, at(middle) - at(row.begin));
    const bars = [draw("rect", { x: at(row.begin), y, width: waiting, height: ROW - 5, rx: 2, class: "waiting" })];
    if (row.middle !== null) {
      const answering = Math.max(1, at(row.end) - at(row.middle));
      bars.push(draw("rect", { x: at(row.middle), y, width: answering, height: ROW - 5, rx: 2, class: row.kind }));
    }
    picture.append(draw("g", {}, ...bars, note(row.note, at(row.begin), at(row.end), y, width), draw("title", {}, row.label)));
  });
  return picture;
}

// The position of a note: after the bar, or before it if there is no room.
function note(words, begin, end, y, width) {
  const isBehind = end + NOTE < width;
  return draw("text", { x: isBehind ? end + 5 : Math.max(0, begin - 5), y: y + 10, "text-anchor": isBehind ? "start" : "end" }, words);
}

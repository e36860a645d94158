// Small pictures: a line of the last values, and bars on a time axis.

import { draw } from "./elements.js";

export function sparkline(values, width = 220, height = 42) {
  const most = Math.max(...values, 1e-9);
  const step = width / Math.max(values.length - 1, 1);
  const points = values.map((value, index) => `${(index * step).toFixed(1)},${(height - 2 - (value / most) * (height - 6)).toFixed(1)}`);
  const line = draw("polyline", { points: points.join(" "), class: "line" });
  return draw("svg", { viewBox: `0 0 ${width} ${height}`, class: "spark", preserveAspectRatio: "none" }, line);
}

const ROW = 16;

// rows: [{label, begin, middle, end, kind}], seconds; middle is null until there is one.
export function timeline(rows, from, to, width) {
  const scale = width / (to - from);
  const at = (time) => Math.max(0, (time - from) * scale);
  const height = rows.length * ROW + 18;
  const picture = draw("svg", { width, height, class: "timeline", role: "img", "aria-label": "Requests over time" });
  for (let ago = 10; ago < to - from; ago += 10) {
    const x = at(to - ago);
    const text = draw("text", { x: x + 2, y: height - 4 }, `−${ago} s`);
    picture.append(draw("line", { x1: x, x2: x, y1: 0, y2: height - 16, class: "tick" }), text);
  }
  rows.forEach((row, index) => {
    const y = index * ROW + 2;
    const middle = row.middle ?? row.end;
    const waiting = Math.max(1, at(middle) - at(row.begin));
    const bars = [draw("rect", { x: at(row.begin), y, width: waiting, height: ROW - 5, class: "waiting" })];
    if (row.middle !== null) {
      const answering = Math.max(1, at(row.end) - at(row.middle));
      bars.push(draw("rect", { x: at(row.middle), y, width: answering, height: ROW - 5, class: row.kind }));
    }
    picture.append(draw("g", {}, ...bars, draw("title", {}, row.label)));
  });
  return picture;
}

// Two pictures: lines over steps, and one bar of shares.

import { h, number, s } from "./dom.js";

const WIDTH = 520;
const HEIGHT = 200;
const EDGE = { left: 38, right: 10, top: 8, bottom: 22 };
const N_COLOURS = 6;
export const colour = (index) => `c${index % N_COLOURS}`;

function legend(names) {
  const items = names.map((name, index) => h("li", {}, s("svg", { viewBox: "0 0 10 10" }, s("rect", { class: colour(index), width: 10, height: 10, rx: 2 })), name));
  return h("ul", { class: "legend" }, ...items);
}

function scale(low, high, from, to) {
  const span = high - low || 1;
  return (value) => from + ((value - low) / span) * (to - from);
}

// series: [{name, points: [[step, value or null]]}]; the y axis covers `floor`..`ceiling` at least.
export function lines(series, { floor = 0, ceiling = 1, label }) {
  const known = series.map((one) => ({ ...one, points: one.points.filter(([, value]) => value !== null) })).filter((one) => one.points.length);
  if (!known.length) return h("p", { class: "quiet" }, "nothing yet");
  const all = known.flatMap((one) => one.points);
  const steps = all.map(([step]) => step);
  const values = all.map(([, value]) => value);
  const [left, right] = [Math.min(...steps), Math.max(...steps)];
  const [low, high] = [Math.min(floor, ...values), Math.max(ceiling, ...values)];
  const x = scale(left, right, EDGE.left, WIDTH - EDGE.right);
  const y = scale(low, high, HEIGHT - EDGE.bottom, EDGE.top);
  const marks = [0, 0.25, 0.5, 0.75, 1].map((share) => low + share * (high - low));
  const grid = marks.flatMap((value) => [
    s("line", { class: "grid", x1: EDGE.left, x2: WIDTH - EDGE.right, y1: y(value), y2: y(value) }),
    s("text", { x: EDGE.left - 6, y: y(value) + 4, "text-anchor": "end" }, number(value)),
  ]);
  const ends = [
    s("text", { x: EDGE.left, y: HEIGHT - 6 }, `step ${left}`),
    s("text", { x: WIDTH - EDGE.right, y: HEIGHT - 6, "text-anchor": "end" }, right === left ? "" : right),
  ];
  const paths = known.map((one, index) =>
    one.points.length === 1
      ? s("circle", { class: colour(index), cx: x(one.points[0][0]), cy: y(one.points[0][1]), r: 3 })
      : s("path", { class: colour(index), "stroke-width": 2, "stroke-linejoin": "round", d: one.points.map(([step, value], at) => `${at ? "L" : "M"}${x(step).toFixed(1)} ${y(value).toFixed(1)}`).join("") }),
  );
  const picture = s("svg", { class: "chart", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": label }, ...grid, ...ends, ...paths);
  return h("div", {}, picture, legend(known.map((one) => `${one.name} ${number(one.points.at(-1)[1])}`)));
}

// parts: [[name, value]]
export function shares(parts, { unit, label }) {
  const known = parts.filter(([, value]) => value > 0);
  const total = known.reduce((sum, [, value]) => sum + value, 0);
  if (!total) return h("p", { class: "quiet" }, "nothing yet");
  let at = 0;
  const bars = known.map(([, value], index) => {
    const bar = s("rect", { class: colour(index), x: at, width: (WIDTH * value) / total, height: 26 });
    at += (WIDTH * value) / total;
    return bar;
  });
  const picture = s("svg", { class: "chart", viewBox: `0 0 ${WIDTH} 26`, role: "img", "aria-label": label }, ...bars);
  return h("div", {}, picture, legend(known.map(([name, value]) => `${name} ${number(value)} ${unit} (${number((100 * value) / total, 0)} %)`)));
}

// Pictures of numbers: lines over steps, columns of stacked parts, one bar of shares, small histograms.

import { h, number, s } from "./dom.js";

const WIDTH = 520;
const HEIGHT = 200;
const EDGE = { left: 38, right: 10, top: 8, bottom: 22 };
const N_COLOURS = 7;
const MOST_LABELS = 14;
export const colour = (index) => `c${index % N_COLOURS}`;

// entries: [[text, index of its colour]]
function legend(entries) {
  const swatch = (index) => s("svg", { viewBox: "0 0 10 10" }, s("rect", { class: colour(index), width: 10, height: 10, rx: 2 }));
  return h("ul", { class: "legend" }, ...entries.map(([text, index]) => h("li", {}, swatch(index), text)));
}

function scale(low, high, from, to) {
  const span = high - low || 1;
  return (value) => from + ((value - low) / span) * (to - from);
}

const titled = (element, text) => (element.append(s("title", {}, text)), element);
export const nothing = (text = "nothing yet") => h("p", { class: "quiet" }, text);

function grid(low, high, y) {
  return [0, 0.25, 0.5, 0.75, 1].map((share) => low + share * (high - low)).flatMap((value) => [
    s("line", { class: "grid", x1: EDGE.left, x2: WIDTH - EDGE.right, y1: y(value), y2: y(value) }),
    s("text", { x: EDGE.left - 6, y: y(value) + 4, "text-anchor": "end" }, number(value, high - low < 0.1 ? 4 : 2)),
  ]);
}

const canvas = (label, ...children) => s("svg", { class: "chart", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": label }, ...children);

// series: [{name, points: [[step, value or null]]}]; the y axis covers `floor`..`ceiling` at least.
export function lines(series, { floor = 0, ceiling = 1, label, over = "step" }) {
  const known = series.map((one) => ({ ...one, points: one.points.filter(([, value]) => value !== null && value !== undefined) })).filter((one) => one.points.length);
  if (!known.length) return nothing();
  const all = known.flatMap((one) => one.points);
  const steps = all.map(([step]) => step);
  const values = all.map(([, value]) => value);
  const [left, right] = [Math.min(...steps), Math.max(...steps)];
  const [low, high] = [Math.min(floor, ...values), Math.max(ceiling, ...values)];
  const x = scale(left, right, EDGE.left, WIDTH - EDGE.right);
  const y = scale(low, high, HEIGHT - EDGE.bottom, EDGE.top);
  const ends = [
    s("text", { x: EDGE.left, y: HEIGHT - 6 }, `${over} ${left}`),
    s("text", { x: WIDTH - EDGE.right, y: HEIGHT - 6, "text-anchor": "end" }, right === left ? "" : right),
  ];
  const path = (points) => points.map(([step, value], at) => `${at ? "L" : "M"}${x(step).toFixed(1)} ${y(value).toFixed(1)}`).join("");
  const paths = known.map((one, index) =>
    one.points.length === 1
      ? s("circle", { class: colour(index), cx: x(one.points[0][0]), cy: y(one.points[0][1]), r: 3 })
      : s("path", { class: colour(index), "stroke-width": 1.5, "stroke-linejoin": "round", d: path(one.points) }),
  );
  return h("div", {}, canvas(label, ...grid(low, high, y), ...ends, ...paths), legend(known.map((one, index) => [`${one.name} ${number(one.points.at(-1)[1])}`, index])));
}

// columns: [{label, parts: [value of each name]}], left to right; `line`: {before: index of a column, text}; counts get
// whole numbers on their axis.
export function stacks(names, columns, { label, unit = "", line = null, isCount = false }) {
  const totals = columns.map((column) => column.parts.reduce((sum, value) => sum + value, 0));
  const most = Math.max(...totals, 0);
  if (!most) return nothing();
  const high = isCount ? 4 * Math.ceil(most / 4) : most;
  const x = scale(0, columns.length, EDGE.left, WIDTH - EDGE.right);
  const y = scale(0, high, HEIGHT - EDGE.bottom, EDGE.top);
  const width = Math.min((WIDTH - EDGE.left - EDGE.right) / columns.length, 60);
  const every = Math.ceil(columns.length / MOST_LABELS);
  const bars = columns.flatMap((column, at) => {
    let below = 0;
    const middle = x(at + 0.5);
    const parts = column.parts.map((value, index) => {
      const top = y(below + value);
      const bar = s("rect", { class: colour(index), x: middle - width * 0.42, y: top, width: width * 0.84, height: y(below) - top });
      below += value;
      return value ? titled(bar, `${column.label}: ${names[index]} ${number(value, 3)} ${unit}`) : null;
    });
    const text = at % every ? null : s("text", { x: middle, y: HEIGHT - 6, "text-anchor": "middle" }, column.label);
    return [...parts, text].filter(Boolean);
  });
  const mark = line && [
    s("line", { class: "mark", x1: x(line.before), x2: x(line.before), y1: 0, y2: HEIGHT - EDGE.bottom }),
    s("text", { class: "mark", x: x(line.before) + 4, y: EDGE.top + 4 }, line.text),
  ];
  const used = names.map((name, index) => [name, index]).filter(([, index]) => columns.some((column) => column.parts[index]));
  return h("div", {}, canvas(label, ...grid(0, high, y), ...bars, ...(mark ?? [])), legend(used));
}

// parts: [[name, value]], in the order of their colours.
export function shares(parts, { unit = "", label }) {
  const total = parts.reduce((sum, [, value]) => sum + value, 0);
  if (!total) return nothing();
  let at = 0;
  const known = parts.map(([name, value], index) => [name, value, index]).filter(([, value]) => value > 0);
  const bars = known.map(([name, value, index]) => {
    const bar = s("rect", { class: colour(index), x: at, width: (WIDTH * value) / total, height: 20 });
    at += (WIDTH * value) / total;
    return titled(bar, `${name} ${number(value)} ${unit}`);
  });
  const picture = s("svg", { class: "chart", viewBox: `0 0 ${WIDTH} 20`, role: "img", "aria-label": label, preserveAspectRatio: "none" }, ...bars);
  const text = (name, value) => `${name} ${number(value, total < 1 ? 3 : 2)}${unit && ` ${unit}`} (${number((100 * value) / total, value * 100 < total ? 1 : 0)} %)`;
  return h("div", {}, picture, legend(known.map(([name, value, index]) => [text(name, value), index])));
}

// counts: {value: count}; bars of values above `limit` are marked as too much.
export function histogram(counts, { label, limit = null }) {
  const values = Object.keys(counts).map(Number).sort((a, b) => a - b);
  if (!values.length) return h("span", { class: "quiet" }, "–");
  const total = values.reduce((sum, value) => sum + counts[value], 0);
  const most = Math.max(...values.map((value) => counts[value]));
  const width = Math.max(18, Math.min(34, 260 / values.length));
  const bars = values.flatMap((value, at) => {
    const height = Math.max((40 * counts[value]) / most, 1);
    const bar = s("rect", { class: limit !== null && value > limit ? "over" : "c0", x: at * width + 1, y: 54 - height, width: width - 2, height });
    const share = (100 * counts[value]) / total;
    return [
      titled(bar, `${value}: ${number(counts[value])} of ${number(total)}`),
      s("text", { x: (at + 0.5) * width, y: 50 - height, "text-anchor": "middle" }, number(share, share < 1 ? 1 : 0)),
      s("text", { x: (at + 0.5) * width, y: 66, "text-anchor": "middle" }, value),
    ];
  });
  return s("svg", { class: "small", viewBox: `0 0 ${values.length * width} 68`, width: values.length * width, height: 68, role: "img", "aria-label": label }, ...bars);
}

// A share of 0 to 1 as a bar in a table's cell.
export function gauge(share, text, kind = "c0") {
  const width = Math.max(0, Math.min(1, share ?? 0)) * 80;
  return h("span", { class: "gauge" }, s("svg", { viewBox: "0 0 80 8", width: 80, height: 8, "aria-hidden": "true" }, s("rect", { class: "back", width: 80, height: 8, rx: 2 }), s("rect", { class: kind, width, height: 8, rx: 2 })), text);
}

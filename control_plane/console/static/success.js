// How well the job does: rewards of what it trains on, and success held out.

import { lines } from "./charts.js";
import { facts, h, number, section, table } from "./dom.js";

export function curves(metrics) {
  const rewards = metrics.series.filter((one) => one.name.startsWith("reward/")).map((one) => ({ ...one, name: one.name.slice("reward/".length) }));
  return section("Mean reward of trained attempts", lines(rewards, { label: "mean reward by step and task" }));
}

const signed = (value) => `${value > 0 ? "+" : ""}${number(value, 3)}`;

export function heldout(job) {
  const evaluated = job.progress.evaluated ?? {};
  const versions = Object.keys(evaluated).map(Number).sort((a, b) => a - b);
  const names = [...new Set(versions.flatMap((version) => Object.keys(evaluated[version])))].sort();
  const [first, last] = [versions[0], versions.at(-1)];
  const rise = (name) => evaluated[last]?.[name] - evaluated[first]?.[name];
  const columns = [
    ["task and mode", (name) => name],
    [`version ${first}`, (name) => number(evaluated[first][name], 3), "n"],
    ...(versions.length > 1
      ? [
          [`version ${last}`, (name) => number(evaluated[last][name], 3), "n"],
          ["change", (name) => h("span", { class: rise(name) > 0 ? "good" : rise(name) < 0 ? "bad" : "" }, signed(rise(name))), "n"],
        ]
      : []),
  ];
  const over = names.map((name) => ({ name, points: versions.map((version) => [version, evaluated[version][name]]) }));
  const running = job.progress.evaluating;
  return section(
    "Held-out success",
    ...(running ? [facts([[`evaluating version ${running.policy_version}`, `${running.done} of ${running.of}`]])] : []),
    table(columns, names, "not evaluated yet"),
    ...(versions.length > 2 ? [lines(over, { label: "held-out success by version", over: "version" })] : []),
  );
}

export function training(metrics) {
  const shown = { "loss": "loss", "grad_norm": "gradient norm", "clip_fraction": "clip fraction", "logprob_gap/mean": "engine to trainer logprob gap, mean" };
  const columns = [
    ["", ([, title]) => title],
    ["now", ([name]) => value(metrics, name), "n"],
  ];
  const rows = Object.entries(shown).filter(([name]) => metrics.series.some((one) => one.name === name));
  return section("What the trainer reports", table(columns, rows));
}

function value(metrics, name) {
  const last = metrics.series.find((one) => one.name === name).points.at(-1)[1];
  return last !== null && last !== 0 && Math.abs(last) < 0.001 ? last.toExponential(1) : number(last, 3);
}

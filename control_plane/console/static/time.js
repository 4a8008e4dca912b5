// Where the seconds go: the parts of a step, weight versions on their way, graders.

import { gauge, lines, shares, stacks } from "./charts.js";
import { bytes, duration, facts, h, number, percent, section, table, when, wide } from "./dom.js";

// Consecutive parts of a step from one commit to the next, in their order: they add up to it.
const WALL = { exposed_pull: "pulling weights", load: "loading weights", buffer_wait: "waiting for a batch", train_wall: "training", overhead: "the rest" };
const BUSY = { "busy/generation": "generation", "busy/environment": "environment", "busy/reward": "reward" };
const INSIDE = { fetch: "fetching the batch", old_logprobs: "old logprobs", update: "update", push: "push", publication_stall: "publication stall", logprob_gap: "logprob gap" };

const committed = (steps) => steps.items.filter((step) => step.state === "committed").reverse();
const second = (step, name) => step.seconds[name] ?? 0;

export function time(steps) {
  const recent = committed(steps);
  const mean = (name) => recent.reduce((sum, step) => sum + second(step, name), 0) / (recent.length || 1);
  const columns = recent.map((step) => ({ label: step.step, parts: Object.keys(WALL).map((name) => second(step, name)) }));
  const busy = Object.entries(BUSY).map(([key, name]) => ({ name, points: recent.map((step) => [step.step, second(step, key)]) }));
  const inside = Object.entries(INSIDE).map(([key, name]) => [name, mean(key)]);
  // Messages to and from the trainer, and the wait for what it compares the engine with.
  inside.push(["around the trainer", Math.max(0, mean("train_wall") - inside.reduce((sum, [, value]) => sum + value, 0))]);
  return wide(
    section(
      `Where a step's time goes (the last ${recent.length})`,
      h(
        "div",
        { class: "pair" },
        h("div", {}, h("h3", {}, "Wall seconds, by step"), stacks(Object.values(WALL), columns, { label: "wall seconds of each step", unit: "s" })),
        h("div", {}, h("h3", {}, "Busy seconds meanwhile, over all processes"), lines(busy, { label: "busy seconds by step", ceiling: 0 })),
        h("div", {}, h("h3", {}, `Mean step: ${duration(mean("step"))}`), shares(Object.entries(WALL).map(([key, name]) => [name, mean(key)]), { unit: "s", label: "mean wall seconds of a step" })),
        h("div", {}, h("h3", {}, "Inside training, mean"), shares(inside, { unit: "s", label: "mean seconds inside training" })),
      ),
    ),
  );
}

const MOVED = { accumulated_pull: "pull", exposed_pull: "exposed pull", verify: "verify", pause: "pause", load: "load", kv_rebuild: "KV rebuild" };

export function versions(page) {
  const each = (row, name) => (row.seconds.n_workers ? duration((row.seconds[name] ?? 0) / row.seconds.n_workers) : "–");
  const columns = [
    ["version", (row) => row.policy_version, "n"],
    ["from", (row) => row.parent_version, "n"],
    ["state", (row) => h("span", { class: row.state === "abandoned" ? "bad" : "" }, row.state)],
    ["size", (row) => bytes(row.total_bytes), "n"],
    ["digest", (row) => row.manifest_digest.slice(0, 10)],
    ["committed", (row) => when(row.committed_at)],
    ["workers", (row) => row.seconds.n_workers ?? "–", "n"],
    ...Object.entries(MOVED).map(([name, title]) => [title, (row) => each(row, name), "n"]),
  ];
  return wide(section("Weight versions, and what reaching a worker took (mean over workers)", table(columns, page.items)));
}

export function rewards(view) {
  const span = (times) => times && `${duration(times.p50)} / ${duration(times.p90)} / ${duration(times.max)}`;
  const columns = [
    ["reward", (row) => row.name],
    ["scored", (row) => number(row.scored), "n"],
    ["abstained", (row) => number(row.abstained), "n"],
    ["unscorable", (row) => h("span", { class: row.unscorable ? "bad" : "" }, number(row.unscorable)), "n"],
    ["retried", (row) => number(row.retried), "n"],
    ["in the queue, p50 / p90 / max", (row) => span(row.queue), "n"],
    ["in the grader", (row) => span(row.grader), "n"],
  ];
  const workers = view.workers;
  return wide(
    section(
      "Rewards by graders",
      facts([
        ["workers' utilisation", gauge(workers.utilisation, percent(workers.utilisation))],
        ["of it by this job", percent(workers.used_by_job)],
        ["slots now", workers.slots],
        ["slot time", duration(workers.slot_s)],
        ["being scored", number(view.scoring)],
      ]),
      table(columns, view.rewards, "no reward came from a grader"),
    ),
  );
}

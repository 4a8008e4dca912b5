// One job: what it does, how well, where its time goes.

import { lines, shares } from "./charts.js";
import { duration, facts, h, number, section, table, when, wide } from "./dom.js";

const WALL = ["buffer_wait", "train_wall", "load", "exposed_pull", "overhead"];
const WALL_NAMES = { buffer_wait: "waiting for a batch", train_wall: "training", load: "loading weights", exposed_pull: "pulling weights", overhead: "the rest" };
const WISHES = { pause: ["starting", "running"], resume: ["pausing", "paused"], cancel: ["queued", "starting", "running", "pausing", "paused"] };

function overview(job, act) {
  const progress = job.progress;
  const buttons = Object.entries(WISHES).map(([wish, phases]) => h("button", { disabled: !phases.includes(job.phase) && "", onclick: () => act(wish) }, wish));
  const box = section(
    job.name,
    facts([
      ["phase", job.desired ? `${job.phase}, ${job.desired} asked for` : job.phase],
      ["step", `${job.step} of ${job.max_steps}`],
      ["left", duration(progress.eta_s)],
      ["policy version", job.current_version],
      ["largest trained lag", progress.max_trained_lag],
      ["in flight", progress.in_flight],
      ["started", when(job.started_at)],
      ["ended", when(job.finished_at)],
    ]),
    ...buttons,
  );
  if (job.reason) box.append(h("p", { class: job.phase === "failed" ? "bad" : "quiet" }, job.reason));
  return wide(box);
}

function evaluation(job) {
  const versions = Object.entries(job.progress.evaluated ?? {}).map(([version, scores]) => ({ version: Number(version), scores }));
  versions.sort((a, b) => a.version - b.version);
  const names = [...new Set(versions.flatMap((one) => Object.keys(one.scores)))].sort();
  const columns = [["version", (row) => row.version, "n"], ...names.map((name) => [name, (row) => number(row.scores[name], 3), "n"])];
  return section("Held-out success", table(columns, versions, "not evaluated yet"));
}

function curves(metrics) {
  const rewards = metrics.series.filter((one) => one.name.startsWith("reward/")).map((one) => ({ ...one, name: one.name.slice("reward/".length) }));
  return section("Mean reward of trained attempts", lines(rewards, { label: "mean reward by step" }));
}

function staleness(metrics) {
  const lag = metrics.series.filter((one) => /^staleness\/s_train_(mean|max)$/.test(one.name)).map((one) => ({ ...one, name: one.name.slice("staleness/s_train_".length) }));
  return section("Lag of trained groups", lines(lag, { label: "lag by step" }));
}

function time(steps) {
  const recent = steps.items.filter((step) => step.state === "committed");
  const mean = (name) => recent.reduce((sum, step) => sum + (step.seconds[name] ?? 0), 0) / (recent.length || 1);
  const parts = WALL.map((name) => [WALL_NAMES[name], mean(name)]);
  const busy = ["generation", "environment", "reward"].map((name) => [name, mean(`busy/${name}`)]);
  return section(
    `Where a step's time goes (mean of the last ${recent.length})`,
    shares(parts, { unit: "s", label: "wall time of a step" }),
    h("p", { class: "quiet" }, "busy beside it: ", busy.map(([name, value]) => `${name} ${number(value)} s`).join(", ")),
  );
}

function buffer(view) {
  const columns = [
    ["groups", (row) => row.groups, "n"],
    ["state", (row) => row.state],
    ["task", (row) => row.task],
    ["oldest version", (row) => row.version, "n"],
    ["lag", (row) => h("span", { class: view.alpha !== null && row.lag > view.alpha ? "bad" : "" }, row.lag ?? "–"), "n"],
    ["age", (row) => `${duration(row.age_min_s)} – ${duration(row.age_max_s)}`, "n"],
  ];
  return section(`Buffer (a step takes ${view.wanted} groups, lag at most ${view.alpha ?? "unbounded"})`, table(columns, view.stock));
}

function ledger(view) {
  const list = (counts) => Object.entries(counts).map(([name, count]) => `${name} ${number(count)}`).join(", ") || "–";
  const columns = [
    ["", (row) => row.purpose],
    ["issued", (row) => number(row.left), "n"],
    ["used", (row) => list(row.used)],
    ["exits", (row) => list(row.exits)],
    ["in flight", (row) => list(row.in_flight)],
    ["", (row) => (row.balanced ? h("span", { class: "good" }, "balanced") : h("span", { class: "bad" }, "does not balance"))],
  ];
  return section("Ledger: issued = used + exits + in flight", table(columns, view.equations));
}

export function workers(page, title = "Workers") {
  const columns = [
    ["worker", (row) => row.name],
    ["kind", (row) => row.kind],
    ["state", (row) => h("span", { class: row.state === "live" ? "good" : "bad" }, row.is_draining ? `${row.state}, draining` : row.state)],
    ["heartbeat", (row) => `${duration(row.heartbeat_age_s)} ago`, "n"],
    ["last reported", (row) => Object.entries(row.stats).map(([name, value]) => `${name} ${typeof value === "number" ? number(value) : value}`).join(", ") || "–", "wrap"],
  ];
  return wide(section(title, table(columns, page.items, "none is registered")));
}

function trajectories(page, jobId) {
  const columns = [
    ["trajectory", (row) => h("a", { href: `#/jobs/${encodeURIComponent(jobId)}/trajectories/${encodeURIComponent(row.trajectory_id)}` }, row.trajectory_id)],
    ["task", (row) => row.task],
    ["state", (row) => row.state],
    ["start version", (row) => row.start_version, "n"],
    ["turns", (row) => row.n_turns, "n"],
    ["tokens", (row) => row.n_generated_tokens, "n"],
    ["reward", (row) => number(row.reward), "n"],
    ["ended by", (row) => row.finish_reason ?? row.reason],
  ];
  return wide(section("Newest trajectories", table(columns, page.items)));
}

export async function jobPage(api, jobId, act) {
  const at = `/jobs/${encodeURIComponent(jobId)}`;
  const [job, metrics, steps, stock, books, fleet, newest] = await Promise.all([
    api(at),
    api(`${at}/metrics?name=reward/*&name=staleness/*`),
    api(`${at}/steps?limit=20`),
    api(`${at}/buffer`),
    api(`${at}/ledger`),
    api("/workers"),
    api(`${at}/trajectories?limit=12`),
  ]);
  return [overview(job, act), curves(metrics), evaluation(job), time(steps), staleness(metrics), buffer(stock), ledger(books), workers(fleet), trajectories(newest, jobId)];
}

export async function trajectoryPage(api, trajectoryId) {
  const at = `/trajectories/${encodeURIComponent(trajectoryId)}`;
  const [found, said] = await Promise.all([api(at), api(`${at}/transcript`).catch(() => null)]);
  const columns = [
    ["attempt", (row) => row.attempt, "n"],
    ["state", (row) => row.state],
    ["reward", (row) => number(row.reward, 3), "n"],
    ["versions", (row) => row.segments.map((part) => `${part.policy_version} × ${part.n_tokens}`).join(", "), "wrap"],
    ["lag when taken", (row) => row.staleness.s_train, "n"],
    ["ended by", (row) => row.finish_reason ?? row.reason],
    ["fault", (row) => row.fault.detail ?? "–", "wrap"],
  ];
  const messages = said?.document.messages ?? [];
  const spoken = messages.flatMap((message) => [h("div", { class: "quiet" }, message.role), h("pre", {}, typeof message.content === "string" ? message.content : JSON.stringify(message.content, null, 1))]);
  return [
    wide(section(`Trajectory ${trajectoryId}`, table(columns, found.attempts))),
    wide(section("What was said", ...(spoken.length ? spoken : [h("p", { class: "quiet" }, "nothing is stored")]))),
  ];
}

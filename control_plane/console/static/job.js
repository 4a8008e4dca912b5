// One job: what it does, how well, what waits, where its time goes.

import { duration, facts, h, number, section, table, when, wide } from "./dom.js";
import { routing, workers } from "./fleet.js";
import { buffer, censoring, ledger, losses, staleness } from "./stock.js";
import { curves, heldout, training } from "./success.js";
import { rewards, time, versions } from "./time.js";

const N_STEPS = 60;
const METRICS = ["reward/*", "loss", "grad_norm", "clip_fraction", "logprob_gap/mean"];
const WISHES = { pause: ["starting", "running"], resume: ["pausing", "paused"], cancel: ["queued", "starting", "running", "pausing", "paused"] };

// The trainer's place in its step.
function atWork(training) {
  if (!training) return "–";
  return `step ${training.step}: ${training.phase.replaceAll("_", " ")}${training.of > 1 ? ` ${training.done} of ${training.of}` : ""}`;
}

function overview(job, act) {
  const progress = job.progress;
  const buttons = Object.entries(WISHES).map(([wish, phases]) => h("button", { disabled: !phases.includes(job.phase) && "", onclick: () => act(wish) }, wish));
  const policy = job.spec.async ?? {};
  const box = section(
    job.name,
    facts([
      ["phase", job.desired ? `${job.phase}, ${job.desired} asked for` : job.phase],
      ["step", `${job.step} of ${job.max_steps}`],
      ["left", job.finished_at ? "–" : duration(progress.eta_s)],
      ["asynchrony", `${policy.preset ?? "–"}, α ${policy.alpha ?? "unbounded"}`],
      ["policy version", job.current_version],
      ["largest trained lag", progress.max_trained_lag],
      ["in flight", progress.in_flight],
      ["in training", atWork(progress.training)],
      ["started", when(job.started_at)],
      ["ended", when(job.finished_at)],
      ...(job.result.model ? [["model", job.result.model]] : []),
    ]),
    ...buttons,
  );
  if (job.reason) box.append(h("p", { class: job.phase === "failed" ? "bad" : "quiet" }, job.reason));
  return wide(box);
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
  return wide(section("Newest training trajectories", table(columns, page.items)));
}

export async function jobPage(api, jobId, act) {
  const at = `/jobs/${encodeURIComponent(jobId)}`;
  const [job, metrics, steps, stock, books, graded, published, fleet, newest] = await Promise.all([
    api(at),
    api(`${at}/metrics?${METRICS.map((name) => `name=${encodeURIComponent(name)}`).join("&")}`),
    api(`${at}/steps?limit=${N_STEPS}`),
    api(`${at}/buffer`),
    api(`${at}/ledger`),
    api(`${at}/rewards`),
    api(`${at}/versions?limit=10`),
    api("/workers"),
    api(`${at}/trajectories?limit=12&purpose=train`),
  ]);
  return [
    overview(job, act),
    curves(metrics),
    heldout(job),
    time(steps),
    buffer(stock, job.progress.flow ?? {}),
    staleness(job.progress, stock.alpha),
    ledger(books),
    losses(books),
    censoring(job.progress),
    rewards(graded),
    routing(job.progress),
    training(metrics),
    versions(published),
    workers(fleet, { current: job.current_version }),
    trajectories(newest, jobId),
  ].filter(Boolean);
}

// The console: reads the public API every two seconds and shows the page that the address names.
//   #/                                   jobs and workers
//   #/jobs/<id>                          one job
//   #/jobs/<id>/trajectories/<id>        one trajectory

import { h, number, section, table, when, wide } from "./dom.js";
import { workers } from "./fleet.js";
import { jobPage } from "./job.js";
import { trajectoryPage } from "./trajectory.js";

const EVERY_MS = 2000;
const main = document.getElementById("main");
const where = document.getElementById("where");
const status = document.getElementById("status");
let round = 0;

async function api(path, options = {}) {
  const answer = await fetch(`/api/v1${path}`, { ...options, signal: AbortSignal.timeout(10000) });
  const body = await answer.json();
  if (!answer.ok) throw new Error(body.detail ?? answer.statusText);
  return body;
}

function jobsTable(page) {
  const columns = [
    ["job", (row) => h("a", { href: `#/jobs/${encodeURIComponent(row.id)}` }, row.name), "wrap"],
    ["phase", (row) => row.phase],
    ["step", (row) => `${row.step} / ${row.max_steps}`, "n"],
    ["reward", (row) => Object.entries(row.progress.train_reward ?? {}).map(([task, value]) => `${task} ${number(value)}`).join(", ") || "–"],
    ["submitted", (row) => when(row.created_at)],
    ["why", (row) => row.reason ?? "", "wrap"],
  ];
  return wide(section("Jobs", table(columns, page.items, "none yet: headrace submit job.yaml")));
}

async function view() {
  const [, jobId, , trajectoryId] = location.hash.replace(/^#\//, "/").split("/").slice(1).map(decodeURIComponent);
  if (trajectoryId) return [await trajectoryPage(api, trajectoryId), h("a", { href: `#/jobs/${encodeURIComponent(jobId)}` }, jobId)];
  if (jobId) return [await jobPage(api, jobId, (wish) => act(jobId, wish)), jobId];
  const [jobs, fleet] = await Promise.all([api("/jobs?limit=50"), api("/workers")]);
  return [[jobsTable(jobs), workers(fleet)], ""];
}

async function act(jobId, wish) {
  if (wish === "cancel" && !confirm("Cancel this job?")) return;
  try {
    await api(`/jobs/${encodeURIComponent(jobId)}/${wish}`, { method: "POST" });
    await show();
  } catch (error) {
    status.textContent = error.message;
  }
}

async function show() {
  const mine = ++round;
  try {
    const [sections, title] = await view();
    if (mine !== round) return;
    const chosen = document.getSelection();
    // Somebody is selecting text: this round's page would take it away.
    if (!chosen.isCollapsed && main.contains(chosen.anchorNode)) return;
    const scrolled = [...main.children].map((one) => one.scrollLeft);
    main.replaceChildren(...sections);
    [...main.children].forEach((one, index) => (one.scrollLeft = scrolled[index] ?? 0));
    where.replaceChildren(title);
    status.textContent = "";
  } catch (error) {
    if (mine === round) status.textContent = `not up to date: ${error.message}`;
  }
}

addEventListener("hashchange", show);
await show();
setInterval(() => document.hidden || show(), EVERY_MS);

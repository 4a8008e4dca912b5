// Who works: processes with what they last reported, and where requests went.

import { gauge } from "./charts.js";
import { bytes, duration, facts, h, number, section, table, wide } from "./dom.js";

const state = (row) => h("span", { class: row.state === "live" ? "good" : "bad" }, row.is_draining ? `${row.state}, draining` : row.state);
const told = (stats) =>
  Object.entries(stats)
    .filter(([, value]) => value)
    .map(([name, value]) => `${name.replaceAll("_", " ")} ${typeof value !== "number" ? value : name.includes("bytes") ? bytes(value) : number(value)}`)
    .join(", ");

function engines(rows, current) {
  const version = (row) => row.stats.policy_version;
  const behind = (row) => (current === null || current === undefined || !(version(row) >= 0) ? "" : current > version(row) ? ` (${current - version(row)} behind)` : "");
  const columns = [
    ["engine", (row) => row.name, "whole"],
    ["state", state],
    ["serves", (row) => (version(row) >= 0 ? `v${version(row)}${behind(row)}` : "nothing"), "whole"],
    ["running", (row) => number(row.stats.running), "n"],
    ["waiting", (row) => number(row.stats.waiting), "n"],
    ["KV cache", (row) => gauge(row.stats.kv_tokens_used / row.stats.kv_tokens_total, `${number(row.stats.kv_tokens_used)} of ${number(row.stats.kv_tokens_total)}`)],
    ["tokens made", (row) => number(row.stats.generated_tokens), "n"],
    ["busy", (row) => duration(row.stats.busy_s), "n"],
    ["job", (row) => row.job_id ?? "free"],
    ["heartbeat", (row) => `${duration(row.heartbeat_age_s)} ago`, "n"],
  ];
  return table(columns, rows);
}

// `current`: the job's newest version, null outside a job.
export function workers(page, { title = "Workers", current = null } = {}) {
  const inference = page.items.filter((row) => row.kind === "inference");
  const columns = [
    ["worker", (row) => row.name, "whole"],
    ["kind", (row) => row.kind],
    ["state", state],
    ["heartbeat", (row) => `${duration(row.heartbeat_age_s)} ago`, "n"],
    ["last reported", (row) => told(row.stats) || "–", "wrap"],
  ];
  const rest = page.items.filter((row) => row.kind !== "inference");
  return wide(section(title, ...(inference.length ? [engines(inference, current)] : []), table(columns, rest, inference.length ? "no other worker is registered" : "none is registered")));
}

export function routing(progress) {
  const { regret_s: regret = {}, profile_s_per_token: profile = {}, ...counts } = progress.routing ?? {};
  const rows = Object.entries(profile).map(([place, perToken]) => {
    const cut = place.lastIndexOf("/");
    return { task: place.slice(0, cut), pool: place.slice(cut + 1), perToken };
  });
  const columns = [
    ["task", (row) => row.task || "probes of the trainer"],
    ["pool", (row) => row.pool],
    ["per token", (row) => `${number(1000 * row.perToken)} ms`, "n"],
    ["regret of the tags", (row) => duration(regret[row.task]), "n"],
  ];
  const shown = Object.entries(counts).filter(([, value]) => value);
  return section("Routing", facts(shown.map(([name, value]) => [name.replaceAll("_", " "), name.endsWith("_s") ? duration(value) : number(value)])), table(columns, rows));
}

// What waits, how old it is, and what is lost on the way.

import { gauge, histogram, nothing, shares, stacks } from "./charts.js";
import { duration, facts, h, number, percent, section, table, wide } from "./dom.js";

const STATES = ["ready", "complete", "open"];
const MOST_VERSIONS = 24;
const USED = ["trained", "evaluated"];

function byVersion(view, task) {
  const stock = view.stock.filter((row) => row.task === task);
  const known = stock.filter((row) => row.version !== null).map((row) => row.version);
  const newest = Math.max(view.current_version ?? 0, ...known);
  const edge = view.alpha === null ? newest : newest - view.alpha;
  const first = Math.max(0, newest - MOST_VERSIONS + 1, Math.min(edge - 1, ...known));
  const count = (state, is) => stock.filter((row) => row.state === state && is(row.version)).reduce((sum, row) => sum + row.groups, 0);
  const column = (label, is) => ({ label, parts: STATES.map((state) => count(state, is)) });
  const columns = [];
  if (known.some((version) => version < first)) columns.push(column(`< ${first}`, (version) => version !== null && version < first));
  const offset = columns.length;
  for (let version = first; version <= newest; version++) columns.push(column(`v${version}`, (one) => one === version));
  columns.push(column("no token yet", (version) => version === null));
  const line = view.alpha === null || edge < first ? null : { before: offset + edge - first, text: `α ${view.alpha}` };
  return h("div", {}, h("h3", {}, task), stacks(STATES, columns, { label: `groups of ${task} by start version`, unit: "groups", line, isCount: true }));
}

export function buffer(view, flow) {
  const tasks = [...new Set(view.stock.map((row) => row.task))].sort();
  const columns = [
    ["groups", (row) => row.groups, "n"],
    ["state", (row) => row.state],
    ["task", (row) => row.task],
    ["start version", (row) => row.version, "n"],
    ["lag", (row) => h("span", { class: view.alpha !== null && row.lag > view.alpha ? "bad" : "" }, row.lag ?? "–"), "n"],
    ["age", (row) => `${duration(row.age_min_s)} – ${duration(row.age_max_s)}`, "n"],
  ];
  const inFlight = {};
  for (const row of view.in_flight) inFlight[row.state] = (inFlight[row.state] ?? 0) + row.attempts;
  return wide(
    section(
      `Buffer: groups by state and start version (now v${view.current_version ?? "–"}; a step takes ${view.wanted})`,
      tasks.length ? h("div", { class: "pair" }, ...tasks.map((task) => byVersion(view, task))) : nothing("no group waits"),
      ...(tasks.length && view.alpha !== null ? [h("p", { class: "quiet" }, "Left of the dashed line a group is too stale to be trained; it moves right with every version.")] : []),
      facts([
        ["attempts in flight", Object.entries(inFlight).map(([state, count]) => `${state} ${number(count)}`).join(", ") || "none"],
        ["groups ready, now and on average", `${number(flow.depth)}, ${number(flow.depth_mean)}`],
        ["in and out", `${number(flow.arrivals_per_s)} and ${number(flow.departures_per_s)} groups/s`],
        ["stay, on average", duration(flow.residence_mean_s)],
        ["age now, on average", duration(flow.age_mean_s)],
        ["Little's law ratio", number(flow.littles_law_ratio, 3)],
      ]),
      table(columns, view.stock, "nothing waits"),
    ),
  );
}

const PARTS = { s_gen: "generating", residence: "waiting", s_train: "in all" };

export function staleness(progress, alpha) {
  const rows = Object.entries(progress.staleness ?? {}).flatMap(([task, outcomes]) =>
    Object.entries(outcomes)
      .sort(([a], [b]) => (b === "trained") - (a === "trained") || a.localeCompare(b))
      .map(([outcome, parts]) => ({ task, outcome, parts })),
  );
  const sum = (counts) => Object.values(counts ?? {}).reduce((total, count) => total + count, 0);
  const columns = [
    ["task", (row) => row.task],
    ["what became of it", (row) => row.outcome],
    ["attempts", (row) => number(sum(row.parts.s_train)), "n"],
    ...Object.entries(PARTS).map(([name, title]) => [
      `${title} (${name})`,
      (row) => histogram(row.parts[name] ?? {}, { label: `${name} of ${row.task}, ${row.outcome}`, limit: name === "s_train" && row.outcome === "trained" ? alpha : null }),
    ]),
    ["apart within a group", (row) => histogram(row.parts.version_spread ?? {}, { label: `spread of versions in groups of ${row.task}` })],
  ];
  const legend = "Updates of the weights that an attempt went through: below a bar their number, above it the share of attempts in %. Groups: the largest distance between start versions of siblings.";
  return wide(section("Staleness by task, of what was trained and of what was not", table(columns, rows), ...(rows.length ? [h("p", { class: "quiet" }, legend)] : [])));
}

export function losses(view) {
  const closed = view.recorded.closed?.train ?? {};
  const issued = view.recorded.issued?.train ?? {};
  const tasks = Object.keys(issued).sort();
  const total = tasks.reduce((sum, task) => sum + issued[task], 0);
  const names = [...new Set(tasks.flatMap((task) => Object.keys(closed[task] ?? {})))].filter((name) => !USED.includes(name)).sort();
  const of = (name) => tasks.reduce((sum, task) => sum + (closed[task]?.[name] ?? 0), 0);
  const columns = [
    ["loss", (name) => name],
    ["share of what was issued", (name) => gauge(of(name) / total, percent(of(name) / total), "c1")],
    ["attempts", (name) => number(of(name)), "n"],
    ...tasks.map((task) => [task, (name) => number(closed[task]?.[name] ?? 0), "n"]),
  ];
  return section("Losses by name (training attempts)", table(columns, names, "nothing was lost"));
}

export function ledger(view) {
  const side = (equation) => [
    ["used", Object.values(equation.used).reduce((sum, count) => sum + count, 0)],
    ["exits", Object.values(equation.exits).reduce((sum, count) => sum + count, 0)],
    ["in flight", Object.values(equation.in_flight).reduce((sum, count) => sum + count, 0)],
  ];
  const told = view.equations.flatMap((equation) => [
    h(
      "h3",
      {},
      `${equation.purpose}: ${number(equation.left)} issued, `,
      equation.balanced ? h("span", { class: "good" }, "balanced") : h("span", { class: "bad" }, `does not balance: ${number(equation.right)} accounted for`),
    ),
    shares(side(equation), { label: `ledger of ${equation.purpose}` }),
  ]);
  return section("Ledger: issued = used + exits + in flight", ...(told.length ? told : [nothing()]));
}

// What redundancy and staleness select: null where nothing was killed.
export function censoring(progress) {
  const tasks = Object.entries(progress.censoring ?? {}).filter(([, told]) => told.killed.n > 0);
  if (!tasks.length) return null;
  const strata = [
    ["tokens when it ended", (row) => (row.up_to_tokens > 2 ? `${Math.floor(row.up_to_tokens / 2) + 1} – ${row.up_to_tokens}` : row.up_to_tokens), "n"],
    ["kept", (row) => number(row.kept), "n"],
    ["killed", (row) => number(row.killed), "n"],
    ["completion probability", (row) => gauge(row.completion_probability, percent(row.completion_probability), "c2")],
  ];
  const means = [
    ["", ([name]) => name],
    ["n", ([, of]) => number(of.n), "n"],
    ["mean tokens", ([, of]) => number(of.mean_tokens), "n"],
    ["mean reward", ([, of]) => number(of.mean_reward, 3), "n"],
    ["reward known", ([, of]) => percent(of.reward_known_share), "n"],
  ];
  const boxes = tasks.map(([task, told]) =>
    h("div", {}, h("h3", {}, `${task}: lengths of kept and killed are ${number(told.length_distance, 3)} apart (0 same, 1 disjoint)`), table(means, [["kept", told.kept], ["killed", told.killed]]), table(strata, told.strata)),
  );
  return wide(section("What was killed against what was kept (redundancy, staleness)", h("div", { class: "pair" }, ...boxes)));
}

// One trajectory: its attempts and what was said.

import { h, number, section, table, wide } from "./dom.js";

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

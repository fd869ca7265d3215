// The requests that run and wait. Their names come from clients, so they are only ever shown as text.

import { count, seconds, share, show } from "./format.js";

const MOST_WAITING = 12;

const byId = (id) => document.getElementById(id);

export function showBatch(frame) {
  const running = frame.requests.filter((request) => request.running);
  const waiting = frame.requests.filter((request) => !request.running);
  showRows(byId("running"), running, describeRunning);
  showRows(byId("waiting"), waiting.slice(0, MOST_WAITING), describeWaiting);
  show(byId("running-rest"), rest(0, frame.others.running, running.length === 0 && "Nothing runs."));
  const unseen = Math.max(0, waiting.length - MOST_WAITING);
  show(byId("waiting-rest"), rest(unseen, frame.others.waiting, waiting.length === 0 && "Nothing waits."));
  byId("is-cut").hidden = !frame.is_cut;
  showRows(byId("levels"), Object.entries(frame.waiting_at_level), describeLevel, makeLevel);
  show(byId("running-count"), `${count(frame.running)} of ${count(frame.max_num_seqs)}`);
  show(byId("waiting-count"), count(frame.waiting));
  show(byId("cache"), share(frame.kv_cache_usage));
}

function rest(unseen, others, ifNone) {
  const parts = [];
  if (unseen > 0) parts.push(`${count(unseen)} more`);
  if (others > 0) parts.push(`${count(others)} of other tenants`);
  return parts.length > 0 ? `And ${parts.join(", ")}.` : ifNone || "";
}

/** Use the elements again that are there: their number seldom changes. */
function showRows(list, items, describe, make = makeRow) {
  while (list.children.length > items.length) list.lastElementChild.remove();
  while (list.children.length < items.length) list.appendChild(make());
  items.forEach((item, index) => describe(list.children[index], item));
}

function makeRow() {
  const row = document.createElement("li");
  for (const name of ["name", "doing", "bar"]) {
    row.appendChild(document.createElement("span")).className = name;
  }
  row.lastElementChild.appendChild(document.createElement("span"));
  return row;
}

function makeLevel() {
  return document.createElement("li");
}

function describeLevel(row, [level, waiting]) {
  show(row, `level ${level}: ${count(waiting)}`);
}

function describeRunning(row, request) {
  const writes = request.computed_prompt_tokens >= request.prompt_tokens;
  const read = `prompt ${count(request.computed_prompt_tokens)} of ${count(request.prompt_tokens)}`;
  describe(row, request, writes ? tokens(request.output_tokens) : read, writes);
}

function describeWaiting(row, request) {
  const written = request.output_tokens > 0 ? `, ${tokens(request.output_tokens)} so far` : "";
  describe(row, request, `for ${seconds(request.seconds)}${written}`, false);
}

function tokens(number) {
  return `${count(number)} token${number === 1 ? "" : "s"}`;
}

/** The beginning of a name that the server made. Others are whole. */
function short(name) {
  return /^[0-9a-f]{32}(-\d+)?$/.test(name) ? name.slice(0, 8) : name;
}

function describe(row, request, doing, writes) {
  const [name, state, bar] = row.children;
  const level = request.priority > 0 ? `level ${request.priority}` : "";
  show(name, [request.tenant, short(request.name), level].filter(Boolean).join(" · "));
  if (name.title !== request.name) name.title = request.name;
  show(state, doing);
  row.classList.toggle("writes", writes);
  const part = request.prompt_tokens > 0 ? request.computed_prompt_tokens / request.prompt_tokens : 0;
  const width = `${Math.round(100 * part)}%`;
  if (bar.firstElementChild.style.width !== width) bar.firstElementChild.style.width = width;
}

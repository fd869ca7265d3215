// The page: follows the gateway's events while it is visible.

import { showBatch } from "./batch.js";
import { count, NOTHING, rate, seconds, share, show } from "./format.js";
import { History } from "./history.js";
import { Playground } from "./playground.js";
import { Plot } from "./plot.js";
import { errorOf, events, hasKey, saveKey, withKey } from "./stream.js";

const RETRY_SECONDS = 1;

const byId = (id) => document.getElementById(id);
const history = new History();
const playground = new Playground();
const plots = [
  { title: "Requests", series: [["running", "run", "answer"], ["waiting", "wait", "slow"]], format: count },
  {
    title: "Tokens per step",
    series: [["decode_tokens_per_step", "answers", "answer"], ["prefill_tokens_per_step", "prompts", "prompt"]],
    format: rate,
    stacked: true,
  },
  {
    title: "Tokens per second",
    series: [["generated_tokens_per_second", "answers", "answer"], ["prompt_tokens_per_second", "prompts", "prompt"]],
    format: rate,
  },
  { title: "KV cache in use", series: [["kv_cache_usage", "now", "typical"]], format: share, top: 1 },
  {
    title: "Time to first token",
    series: [["first_token_p50", "median", "typical"], ["first_token_p99", "99 of 100 below", "slow"]],
    format: seconds,
  },
  {
    title: "Time between tokens",
    series: [["inter_token_p50", "median", "typical"], ["inter_token_p99", "99 of 100 below", "slow"]],
    format: seconds,
  },
  {
    title: "Requests per second",
    series: [["finished_per_second", "ended", "typical"], ["refused_per_second", "refused", "slow"]],
    format: rate,
  },
  { title: "Prompt tokens from cache", series: [["prefix_hit_rate", "share", "prompt"]], format: share, top: 1 },
].map((plot) => new Plot(byId("plots"), plot));

let watching = new AbortController();
let wakeUp = () => {};

function showFrame(frame, isFirst) {
  playground.model = frame.model;
  show(byId("model"), frame.model);
  showProblem(frame.problem ?? "");
  if (frame.problem) return;
  showBatch(frame);
  const isNew = frame.points.time.length > 0;
  history.add(frame.points, isFirst);
  if (isNew) showPoints();
}

function showPoints() {
  const last = (name) => history.last(name);
  const [decode, prefill] = [last("decode_tokens_per_step"), last("prefill_tokens_per_step")];
  const step = `Each step: ${rate(decode)} tokens of answers, ${rate(prefill)} of prompts.`;
  show(byId("step"), decode === null ? "No steps now." : step);
  show(byId("tokens-per-second"), rate(last("generated_tokens_per_second")));
  show(byId("requests-per-second"), rate(last("finished_per_second")));
  show(byId("prefix-hits"), share(last("prefix_hit_rate")));
  for (const plot of plots) plot.draw(history);
}

function showProblem(text) {
  show(byId("problem"), text);
  byId("problem").hidden = text === "";
}

function showState(text) {
  show(byId("state"), text);
  byId("state").classList.toggle("live", text === "live");
}

/** Follow one stream to its end. Return the seconds to wait before the next one. */
async function follow() {
  const response = await fetch("ui/events", { headers: withKey({}), signal: watching.signal, cache: "no-store" });
  byId("key-form").hidden = response.status !== 401;
  if (response.status === 401) {
    showState("no key");
    showProblem(hasKey() ? await errorOf(response) : "");
    return Infinity;
  }
  if (!response.ok) throw new Error(await errorOf(response));
  showState("live");
  // The first frame with points replaces all that are there: after a problem, it is not the first frame.
  let isFirst = true;
  for await (const data of events(response)) {
    const frame = JSON.parse(data);
    showFrame(frame, isFirst);
    isFirst &&= frame.problem !== undefined;
  }
  return RETRY_SECONDS;
}

async function pause(seconds) {
  await new Promise((resolve) => {
    wakeUp = resolve;
    if (seconds < Infinity) setTimeout(resolve, 1000 * seconds);
  });
}

async function watch() {
  for (;;) {
    let wait;
    try {
      wait = await follow();
    } catch (error) {
      wait = RETRY_SECONDS;
      const isPaused = error.name === "AbortError";
      showState(isPaused ? "paused" : "not connected");
      if (!isPaused) showProblem(error instanceof TypeError ? "the gateway does not answer" : error.message);
    }
    await pause(document.hidden ? Infinity : wait);
  }
}

byId("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  saveKey(byId("key").value);
  byId("key").value = "";
  wakeUp();
});

// A page that nobody sees costs nothing.
document.addEventListener("visibilitychange", () => {
  if (document.hidden) {
    watching.abort();
  } else {
    watching = new AbortController();
    wakeUp();
  }
});

show(byId("step"), NOTHING);
watch();

// Sends a message and shows the answer as it arrives.

import { count, rate, seconds, show } from "./format.js";
import { errorOf, events, withKey } from "./stream.js";

const byId = (id) => document.getElementById(id);

export class Playground {
  model = null;
  #stopping = null;

  constructor() {
    byId("ask").addEventListener("submit", (event) => {
      event.preventDefault();
      this.#ask();
    });
    byId("stop").addEventListener("click", () => this.#stopping?.abort());
  }

  async #ask() {
    this.#stopping = new AbortController();
    this.#setBusy(true);
    const answer = new Answer(byId("answer"), byId("figures"));
    try {
      const response = await fetch("v1/chat/completions", {
        method: "POST",
        headers: withKey({ "Content-Type": "application/json" }),
        body: JSON.stringify(this.#body()),
        signal: this.#stopping.signal,
      });
      if (!response.ok) throw new Error(await errorOf(response));
      for await (const data of events(response)) {
        if (data !== "[DONE]") answer.add(JSON.parse(data));
      }
      answer.end("");
    } catch (error) {
      answer.end(error.name === "AbortError" ? "stopped" : error.message);
    } finally {
      this.#setBusy(false);
    }
  }

  #body() {
    return {
      model: this.model,
      messages: [{ role: "user", content: byId("prompt").value }],
      max_tokens: byId("max-tokens").valueAsNumber,
      temperature: byId("temperature").valueAsNumber,
      stream: true,
      stream_options: { include_usage: true, continuous_usage_stats: true },
    };
  }

  #setBusy(isBusy) {
    byId("send").disabled = isBusy;
    byId("stop").disabled = !isBusy;
  }
}

class Answer {
  #asked = performance.now();
  #first = null;
  #last = null;
  #tokens = 0;

  constructor(text, figures) {
    this.text = text;
    this.figures = figures;
    text.textContent = "";
    show(figures, "waiting for the first token");
    figures.classList.remove("bad");
  }

  add(chunk) {
    if (chunk.error) throw new Error(chunk.error.message);
    if (chunk.usage && chunk.usage.completion_tokens > this.#tokens) {
      this.#tokens = chunk.usage.completion_tokens;
      this.#last = performance.now();
      this.#first ??= this.#last;
    }
    const delta = chunk.choices[0]?.delta;
    const text = (delta?.reasoning_content ?? "") + (delta?.content ?? "");
    if (text) this.text.append(text);
    this.#show("");
  }

  end(problem) {
    this.figures.classList.toggle("bad", problem !== "" && problem !== "stopped");
    this.#show(problem);
  }

  #show(problem) {
    const parts = [];
    if (this.#first !== null) {
      parts.push(`${count(this.#tokens)} tokens`, `the first after ${seconds((this.#first - this.#asked) / 1000)}`);
      const writing = (this.#last - this.#first) / 1000;
      if (writing > 0) parts.push(`${rate((this.#tokens - 1) / writing)} tokens per second`);
    }
    if (problem) parts.push(problem);
    show(this.figures, parts.join(" · "));
  }
}

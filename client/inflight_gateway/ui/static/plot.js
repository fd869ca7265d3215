// A small plot of figures over the last five minutes.

import { SECONDS } from "./history.js";
import { show } from "./format.js";

const LEFT = 52, RIGHT = 6, TOP = 8, BOTTOM = 18;
// Where nobody watched for so long, the line is broken.
const GAP = 5;

let colors = readColors();
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { colors = readColors(); });

function readColors() {
  const style = getComputedStyle(document.documentElement);
  const names = ["line", "quiet", "prompt", "answer", "typical", "slow"];
  return Object.fromEntries(names.map((name) => [name, style.getPropertyValue(`--${name}`)]));
}

export class Plot {
  /** `series`: [name of the figure, label, colour]; with `stacked`, each is drawn on top of the one before. */
  constructor(parent, { title, series, format, stacked = false, top = null }) {
    Object.assign(this, { series, format, stacked, top });
    const figure = document.createElement("figure");
    const caption = figure.appendChild(document.createElement("figcaption"));
    caption.appendChild(document.createElement("strong")).textContent = title;
    this.labels = series.map(([, , color]) => {
      const label = caption.appendChild(document.createElement("span"));
      label.className = `key ${color}`;
      return label;
    });
    this.canvas = figure.appendChild(document.createElement("canvas"));
    this.canvas.setAttribute("aria-hidden", "true");  // The caption has the newest figures.
    parent.appendChild(figure);
    // Asked for its size while it draws, the browser would compute the layout anew for each plot.
    [this.width, this.height] = [0, 0];
    new ResizeObserver(([{ contentRect }]) => {
      [this.width, this.height] = [contentRect.width, contentRect.height];
    }).observe(this.canvas);
  }

  draw(history) {
    this.series.forEach(([name, label], index) => {
      show(this.labels[index], `${label} ${this.format(history.last(name))}`);
    });
    const context = this.fit();
    const lines = this.lines(history.columns);
    const top = this.top ?? niceTop(Math.max(...lines.flat().filter((value) => value !== null)));
    const times = history.columns.time;
    this.drawAxes(context, top);
    const place = {
      x: (index) => LEFT + (1 - (times.at(-1) - times[index]) / SECONDS) * (this.width - LEFT - RIGHT),
      y: (value) => TOP + (1 - Math.min(1, value / top)) * (this.height - TOP - BOTTOM),
      isGap: (index) => index > 0 && times[index] - times[index - 1] > GAP,
    };
    // The highest of a stack first, and the others before it.
    for (let index = lines.length - 1; index >= 0; index--) {
      drawLine(context, lines[index], place, colors[this.series[index][2]], this.stacked);
    }
  }

  lines(columns) {
    const lines = this.series.map(([name]) => columns[name] ?? []);
    if (!this.stacked) return lines;
    const sums = [];
    return lines.map((values) => values.map((value, at) => {
      if (value === null) return null;
      sums[at] = (sums[at] ?? 0) + value;
      return sums[at];
    }));
  }

  fit() {
    const ratio = devicePixelRatio;
    if (this.canvas.width !== Math.round(this.width * ratio)) {
      this.canvas.width = Math.round(this.width * ratio);
      this.canvas.height = Math.round(this.height * ratio);
    }
    const context = this.canvas.getContext("2d");
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, this.width, this.height);
    return context;
  }

  drawAxes(context, top) {
    context.font = "11px system-ui, sans-serif";
    context.fillStyle = colors.quiet;
    context.strokeStyle = colors.line;
    context.lineWidth = 1;
    context.textBaseline = "middle";
    context.textAlign = "right";
    for (const part of [0, 0.5, 1]) {
      const y = Math.round(TOP + (1 - part) * (this.height - TOP - BOTTOM)) + 0.5;
      context.beginPath();
      context.moveTo(LEFT, y);
      context.lineTo(this.width - RIGHT, y);
      context.stroke();
      if (part !== 0.5) context.fillText(part === 0 ? "0" : this.format(top), LEFT - 6, y);
    }
    context.textBaseline = "alphabetic";
    context.fillText("now", this.width - RIGHT, this.height - 4);
    context.textAlign = "left";
    context.fillText("5 min ago", LEFT, this.height - 4);
  }
}

function drawLine(context, values, { x, y, isGap }, color, isFilled) {
  context.strokeStyle = context.fillStyle = color;
  context.lineWidth = 1.5;
  let begun = null;
  const end = (index) => {
    if (begun === null) return;
    if (isFilled) {
      context.lineTo(x(index), y(0));
      context.lineTo(x(begun), y(0));
      context.fill();
    } else {
      context.stroke();
    }
    begun = null;
  };
  values.forEach((value, index) => {
    if (value === null || isGap(index)) end(index - 1);
    if (value === null) return;
    if (begun === null) {
      context.beginPath();
      context.moveTo(x(index), y(value));
      begun = index;
    } else {
      context.lineTo(x(index), y(value));
    }
  });
  end(values.length - 1);
}

/** The next of 1, 2 or 5 times a power of ten. */
function niceTop(value) {
  if (!(value > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].find((factor) => factor * power >= value) * power;
}

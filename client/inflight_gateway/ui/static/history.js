// The points of the last five minutes, one array for each figure.

const SECONDS = 300;

export class History {
  columns = { time: [] };

  /** Add new points, or replace all of them: a new stream begins with all that the gateway has. */
  add(points, isFirst) {
    if (isFirst) {
      this.columns = points;
      return;
    }
    for (const [name, values] of Object.entries(points)) this.columns[name].push(...values);
    const times = this.columns.time;
    const old = times.findIndex((time) => time >= times.at(-1) - SECONDS);
    if (old > 0) for (const values of Object.values(this.columns)) values.splice(0, old);
  }

  last(name) {
    return this.columns[name]?.at(-1);
  }
}

export { SECONDS };

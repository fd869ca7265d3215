// Numbers as people read them.

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const tenths = new Intl.NumberFormat("en", { minimumFractionDigits: 1, maximumFractionDigits: 1 });

export const NOTHING = "–";

function unlessNothing(format) {
  return (value) => (value === null || value === undefined ? NOTHING : format(value));
}

export const count = unlessNothing((value) => whole.format(value));
export const rate = unlessNothing((value) => (value < 10 ? tenths : whole).format(value));
export const share = unlessNothing((value) => `${whole.format(100 * value)} %`);
export const seconds = unlessNothing((value) => {
  if (value < 0.01) return `${tenths.format(1000 * value)} ms`;
  return value < 1 ? `${whole.format(1000 * value)} ms` : `${(value < 10 ? tenths : whole).format(value)} s`;
});

/** Change the text of an element if it differs: what does not change is not drawn again. */
export function show(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

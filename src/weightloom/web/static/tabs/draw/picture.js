// Arrays as pictures: brightness in the colours of the theme, and a heat map of deviations.

const DEVIATION = 0.4; // upper end of the heat map; brightness is between 0 and 1

/** Colours of the current theme: mix(0) is the paper, mix(1) the ink. */
export function colours() {
  const style = getComputedStyle(document.documentElement);
  const read = (name) => style.getPropertyValue(name).trim();
  return {mix: window.d3.interpolateRgb(read("--paper"), read("--ink")), line: read("--line"), accent: read("--accent")};
}

function fill(canvas, values, side, colour) {
  canvas.width = canvas.height = side;
  const pen = canvas.getContext("2d"), image = pen.createImageData(side, side);
  values.forEach((value, i) => {
    const {r, g, b} = window.d3.rgb(colour(value));
    image.data.set([r, g, b, 255], 4 * i);
  });
  pen.putImageData(image, 0, 0);
  canvas.classList.remove("blank");
  canvas.dataset.side = side;
}

/** Brightness, clipped to [0, 1]. */
export function greys(canvas, values, side) {
  const {mix} = colours();
  fill(canvas, values, side, (value) => mix(Math.min(1, Math.max(0, value))));
}

/** Deviations, at least 0, as a heat map. */
export function heat(canvas, values, side) {
  fill(canvas, values, side, (value) => window.d3.interpolateViridis(Math.min(1, value / DEVIATION)));
}

/** The colour scale of `heat`. */
export function legend({el}) {
  const bar = el("canvas", {class: "ramp", width: 64, height: 1, role: "img", "aria-label": `Colours from 0 to ${DEVIATION}`});
  const pen = bar.getContext("2d");
  for (let i = 0; i < 64; i++) {
    pen.fillStyle = window.d3.interpolateViridis(i / 63);
    pen.fillRect(i, 0, 1, 1);
  }
  return el("div", {class: "ramp-legend"}, bar, el("div", {class: "ends number"}, el("span", {}, "0"), el("span", {}, "brightness"), el("span", {}, `${DEVIATION} or more`)));
}

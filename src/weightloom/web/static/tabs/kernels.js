// Exact kernels of infinitely wide hypernetworks, kernels of sampled finite ones, and the higher orders K^(r).
const ACTIVATIONS = [["relu", "ReLU"], ["leaky_relu", "leaky ReLU"], ["abs", "|u|"], ["identity", "u (linear)"], ["erf", "erf"],
  ["sin", "sin"], ["cos", "cos"], ["gelu", "GELU"], ["tanh", "tanh"]];
const KINDS = [["ntk", "Hyperkernel"], ["nngp", "NNGP"]];
const SETTINGS = [["relu", "ReLU in f and g"], ["leaky", "leaky ReLU in f and g"], ["smooth g", "tanh in g"], ["smooth f", "tanh in f"]];
const WIDTHS = [4, 8, 16, 32, 64, 128, 256];
const WIDTHS_OF_F = {1: [16, 32, 64, 128, 256], 2: [64, 256, 1024, 4096], 3: [64, 256, 1024, 4096]};
/** Labels at powers of ten, and none at the other ticks of a logarithmic axis. */
function decades(value) {
  const power = Math.log10(value);
  if (Math.abs(power - Math.round(power)) > 1e-9) return "";
  return Math.abs(power) < 4 ? String(Number(value.toPrecision(1))) : `1e${Math.round(power)}`;
}

export async function mount(section, tools) {
  section.append(
    tools.el("p", {}, "What does a hypernetwork g(z; f(x)) become when both parts are infinitely wide? Before training, a Gaussian process with a ",
      "known covariance, the NNGP kernel. After training, regression with the hyperkernel. Both are computed exactly here, and compared with sampled finite networks."),
    curves(tools), taylor(tools));
  await Promise.all([section.querySelector(".curves").ready, section.querySelector(".taylor").ready]);
}

/** Exact and sampled kernels against the angle between two points. */
function curves({el, api, slider, select, choice, button, status, chart, debounce, card, format, Plot, COLOURS}) {
  const changed = () => { stop(); samples = null; exact(); };
  const kind = choice({label: "Kernel", options: KINDS, value: "ntk", onChange: changed});
  const depth = (label, value) => slider({label, min: 1, max: 5, value, onInput: changed});
  const activation = (label) => select({label, options: ACTIVATIONS, value: "relu", onChange: changed});
  const fields = {depth_f: depth("Depth of f, L", 3), depth_g: depth("Depth of g, H", 2),
    activation_f: activation("Activation of f"), activation_g: activation("Activation of g")};
  const angle = slider({label: "Angle between x and x′", min: 0, max: 180, step: 5, value: 0, format: (v) => `${v}°`, onInput: changed});
  const widest = slider({label: "Largest width", values: WIDTHS.slice(2), value: 64, onInput: () => stop()});
  const draws = slider({label: "Networks of each width", values: [5, 10, 20, 40], value: 10, onInput: () => stop()});
  const line = chart(null, {label: "The kernel against the angle between two points"});
  const fall = chart(null, {label: "Spread of the kernel from network to network, against the width"});
  // Two status lines: the exact curve may finish while networks are being sampled.
  const computing = status(), sampling = status(), text = el("p", {class: "hint", "aria-live": "polite"});
  let curve = null, samples = null, run = 0;

  const asked = () => ({kind: kind.value, angle: angle.value * Math.PI / 180,
    ...Object.fromEntries(Object.entries(fields).map(([name, {value}]) => [name, value]))});
  const stop = () => { run += 1; };

  async function ask() {
    const mine = run;
    const answer = await computing.during("Computing", () => api("/api/kernels/exact", asked()));
    if (answer && mine === run) { curve = answer; draw(); }
  }
  const exact = debounce(ask, 80);

  async function sample() {
    stop();
    const mine = run, wanted = {...asked(), draws: draws.value};
    const widths = WIDTHS.filter((width) => width <= widest.value);
    try {
      for (let i = 1; i <= widths.length; i++) {
        sampling.progress((i - 1) / widths.length, `Sampling ${draws.value} networks of width ${widths[i - 1]}`);
        const answer = await api("/api/kernels/sampled", {...wanted, widths: widths.slice(0, i)});
        if (mine !== run) break;
        samples = answer;
        draw();
      }
      sampling.done();
    } catch (error) { sampling.error(error); }
  }

  function draw() {
    if (!curve) return;
    const exactly = curve.angle.map((a, i) => ({angle: a * 180 / Math.PI, kernel: curve.kernel[i]}));
    const last = samples?.widths.at(-1), shown = samples ? samples.widths.slice(-3) : [];
    // Narrow networks have heavy tails: their bars may leave the chart, the exact curve may not.
    const heights = [...curve.kernel, 0, ...(last ? last.mean.flatMap((m, i) => [m - last.deviation[i], m + last.deviation[i]]) : [])];
    const [low, high] = [Math.min(...heights), Math.max(...heights)], room = 0.08 * (high - low);
    const colour = new Map(shown.map((each, i) => [each.width, COLOURS[[1, 2, 3][i + 3 - shown.length]]]));
    const dots = shown.flatMap((each, k) => each.mean.map((mean, i) => ({
      angle: samples.angle[i] * 180 / Math.PI + 1.6 * (k - (shown.length - 1) / 2), mean,
      low: mean - each.deviation[i], high: mean + each.deviation[i], width: each.width})));
    line.draw((width) => ({
      height: Math.min(360, 0.62 * width + 60), marginLeft: 48, marginBottom: 40, marginTop: 28,
      x: {label: "angle between z and z′ (degrees) →", domain: [-4, 184], ticks: [0, 45, 90, 135, 180]},
      y: {label: `↑ ${kind.value === "ntk" ? "hyperkernel" : "NNGP kernel"}`, grid: true, domain: [low - room, high + room]},
      color: {legend: true, domain: ["exact", ...shown.map((each) => `width ${each.width}`)], range: [COLOURS[0], ...shown.map((each) => colour.get(each.width))]},
      marks: [
        Plot.ruleY([0], {stroke: "currentColor", strokeOpacity: 0.4}),
        Plot.lineY(exactly, {x: "angle", y: "kernel", stroke: () => "exact", strokeWidth: 2.5}),
        Plot.ruleX(dots, {x: "angle", y1: "low", y2: "high", stroke: (d) => `width ${d.width}`, strokeOpacity: 0.7, strokeWidth: 1.5, clip: true}),
        Plot.dot(dots, {x: "angle", y: "mean", fill: (d) => `width ${d.width}`, r: 3.5, clip: true}),
      ],
    }));
    line.dataset.drawn = String(shown.length);
    if (!samples) { fall.draw(null); fall.replaceChildren(); text.textContent = "“Sample networks” adds means and standard deviations over finite networks."; return; }
    const spread = samples.widths.map(({width, spread}) => ({width, spread}));
    const slope = samples.slope, fit = slope && [spread[0].width, last.width].map((w) => ({width: w, spread: 10 ** (slope.intercept + slope.value * Math.log10(w))}));
    fall.draw((width) => ({
      height: Math.min(300, 0.55 * width + 50), marginLeft: 52, marginBottom: 40, marginTop: 26,
      x: {type: "log", base: 2, label: "width of f and g →", ticks: spread.map(({width}) => width), tickFormat: (d) => String(d)},
      y: {type: "log", label: "↑ spread, relative to the kernel", grid: true, tickFormat: decades, ticks: 5},
      marks: [
        fit && Plot.line(fit, {x: "width", y: "spread", stroke: COLOURS[4], strokeDasharray: "5 4"}),
        Plot.dot(spread, {x: "width", y: "spread", fill: COLOURS[1], r: 4}),
      ],
    }));
    text.textContent = `Dots: means over ${draws.value} networks; bars: one standard deviation across networks${shown.length > 1 ? " (those of narrow networks may leave the chart)" : ""}.` + (slope
      ? ` The spread falls like width^${format(slope.value, 2)}${slope.margin === null ? "" : ` ± ${format(slope.margin, 2)}`}.` : "")
      + (kind.value === "nngp" ? " Each network's NNGP kernel is an average over 32 outputs; with more outputs the bars would be shorter at any width." : "");
  }

  const node = el("div", {class: "columns curves"},
    card("Hypernetwork", kind.node, ...Object.values(fields).map(({node}) => node), angle.node,
      el("hr"), widest.node, draws.node, button("Sample networks", sample, {kind: "main"})),
    card("Exact and sampled", computing.node, sampling.node, line, text, fall));
  node.ready = ask();
  return node;
}

/** K^(r): which terms of the Taylor series of a gradient step remain as f becomes wide. */
function taylor({el, api, select, slider, button, status, chart, card, table, format, Plot, COLOURS}) {
  const clear = () => { run += 1; };
  const setting = select({label: "Activations", options: SETTINGS, value: "relu", onChange: clear});
  const depth = slider({label: "Depth of g, H", min: 1, max: 3, value: 2, onInput: clear});
  const lines = chart(null, {label: "Sizes of K^(r) against the width of f"});
  const progress = status(), numbers = el("div");
  const empty = el("p", {class: "muted"}, "Nothing measured yet.");
  let run = 0;

  async function measure() {
    clear();
    const mine = run, widths = WIDTHS_OF_F[depth.value], wanted = {setting: setting.value, depth: depth.value};
    empty.hidden = true;
    try {
      for (let i = 1; i <= widths.length; i++) {
        progress.progress((i - 1) / widths.length, `Sampling networks with ${widths[i - 1]} neurons in f`);
        const answer = await api("/api/kernels/orders", {...wanted, widths: widths.slice(0, i)});
        if (mine !== run) break;
        draw(answer);
      }
      progress.done();
    } catch (error) { progress.error(error); }
  }

  function draw({widths, orders}) {
    const rows = orders.flatMap(({order, medians}) => medians.map((size, i) => ({order: `r = ${order}`, width: widths[i], size})))
      .filter(({size}) => size > 0);
    lines.draw((width) => ({
      height: Math.min(320, 0.6 * width + 50), marginLeft: 52, marginBottom: 40, marginTop: 26,
      x: {type: "log", base: 2, label: "width of f →", ticks: widths, tickFormat: (d) => String(d)},
      y: {type: "log", label: "↑ median of |K⁽ʳ⁾|", grid: true, tickFormat: decades, ticks: 6},
      color: {legend: true, domain: orders.map(({order}) => `r = ${order}`), range: COLOURS},
      marks: [Plot.lineY(rows, {x: "width", y: "size", z: "order", stroke: "order", marker: "dot", strokeWidth: 2})],
    }));
    numbers.replaceChildren(table(["r", "measured exponent", "Theorem 1"], orders.map(({order, slope, theorem}) => [
      String(order), slope ? `${format(slope.value, 2)}${slope.margin === null ? "" : ` ± ${format(slope.margin, 2)}`}` : "", String(theorem)]),
      {caption: "K⁽ʳ⁾ scales like n to this power"}));
  }

  const node = el("div", {class: "columns taylor"},
    card("Terms of a gradient step", el("p", {class: "hint"}, "K⁽ʳ⁾ is the r-th derivative of the output along the gradient of a step. Theorem 1 of ",
      "“On Infinite-Width Hypernetworks” says K⁽ʳ⁾ ~ n^min(0, H − r) for a narrow g and an f of width n: with a deep g, higher terms remain. It ",
      "covers ReLU and leaky ReLU. With tanh in f or g, measurements on 300 networks of each width did not follow it."),
      setting.node, depth.node, button("Measure", measure, {kind: "main"})),
    card("K⁽ʳ⁾ against the width of f", progress.node, empty, lines, numbers));
  node.ready = Promise.resolve();
  return node;
}

// Pieces and constructions: a network written by hand, what it computes, its certificate and its affine pieces.

/** About 25 values from low to high, equally spaced on a log scale, two digits each. */
function decades(low, high, value) {
  const steps = Array.from({length: 25}, (_, i) => Number((low * (high / low) ** (i / 24)).toPrecision(2)));
  return [...new Set([...steps, value])].filter((each) => each >= low && each <= high).sort((a, b) => a - b);
}

export async function mount(section, tools) {
  const {el, api, slider, select, status, chart, card, button, debounce, latest, format, download, unique} = tools;
  const progress = status();
  const about = el("p", {class: "muted"});
  const controls = el("div", {class: "stack"});
  const facts = el("div");
  const notes = el("ul", {class: "plain"});
  const shown = el("div", {class: "stack"});
  const graph = el("div", {class: "scroll", tabindex: "0", role: "region", "aria-label": "the network"});
  const graphNote = el("p", {class: "hint"});
  const tick = (v) => (v === 0 ? "0" : tools.d3.format(Math.abs(v) < 1e-3 ? ".2~e" : ".3~g")(v));
  const {constructions} = await api("/api/constructions/catalogue");
  const byName = new Map(constructions.map((each) => [each.name, each]));
  let inputs = new Map();

  const chooser = el("select", {id: unique("construction"), on: {change: () => choose(chooser.value)}},
    ...[...new Set(constructions.map((each) => each.group))].map((group) => el("optgroup", {label: group},
      ...constructions.filter((each) => each.group === group).map(({name, title}) => el("option", {value: name}, title)))));
  const saving = status();
  const save = button("Download the network", async () => {
    const blob = await saving.during("Writing", () => api(`/api/constructions/network/${address()}`, undefined, {blob: true}));
    if (blob) download(`${chooser.value}.safetensors`, blob);
  });

  section.append(
    el("p", {}, "How small can a ReLU network for a given function be? These are written by hand. Each has a certificate: a proven bound on its error, and a measurement that tries to refute it. Breakpoints between affine pieces are exact and marked on the axis."),
    el("div", {class: "columns"},
      card("Construction", el("div", {class: "field"}, el("label", {for: chooser.id}, "Network"), chooser), about, controls,
        save, el("p", {class: "hint"}, "A safetensors file; “Same network?” can read it. Theorem numbers are those of “Deep learning theory” (Telgarsky)."), saving.node),
      el("div", {class: "stack"}, progress.node, shown,
        card("Size and certificate", facts, notes), card("The network", graph, graphNote))));

  const address = () => `${chooser.value}?${new URLSearchParams([...inputs].map(([name, input]) => [name, input.value]))}`;

  const control = (p) => {
    const label = p.label[0].toUpperCase() + p.label.slice(1);
    if (p.choices.length) {
      return select({label, options: p.choices, value: p.default, onChange: () => again()});
    }
    const range = p.log ? {values: decades(p.low, p.high, p.default), format: (value) => format(value)} : {min: p.low, max: p.high};
    return slider({label, value: p.default, onInput: () => again(), ...range});
  };

  const choose = async (name) => {
    const construction = byName.get(name);
    about.textContent = construction.about;
    inputs = new Map(construction.parameters.map((p) => [p.name, control(p)]));
    controls.replaceChildren(...[...inputs.values()].map((input) => input.node));
    await ask();
  };

  const ask = latest(async () => {
    const name = chooser.value;
    const answer = await progress.during("Building", () => api(`/api/constructions/view/${address()}`));
    if (!answer || name !== chooser.value) return;
    if (answer.dims === 2) square(answer); else line(answer);
    numbers(answer);
    network(answer);
  });
  const again = debounce(ask, 120);

  // -- charts ----------------------------------------------------------------------------------

  // Charts are kept from one answer to the next, so that the page does not jump while a slider moves.
  const kept = new Map();
  const kind = (name, title, labels) => {
    if (!kept.has(name)) {
      const charts = labels.map((label) => chart(null, {label}));
      const legend = el("p", {class: "legend hint"});
      kept.set(name, {charts, legend, node: card(title, legend, ...(labels.length > 2 ? [el("div", {class: "triple"}, ...charts)] : charts))});
    }
    const entry = kept.get(name);
    if (shown.firstChild !== entry.node) shown.replaceChildren(entry.node);
    return entry;
  };
  const swatch = (style, text) => el("span", {class: "key"}, el("span", {class: `line ${style}`}), text);

  const line = (answer) => {
    const {Plot} = tools;
    const certified = answer.target.length > 0;
    const {charts, legend} = certified
      ? kind("line", "Function and network", ["The function and the network's output", "The error at every point, and the bound on it"])
      : kind("free", "Output along a line", ["The network's output along a line, with its breakpoints"]);
    const several = answer.output.length > 1;
    legend.replaceChildren(
      certified ? swatch("target", "function") : "", swatch("output", several ? `network, ${answer.output.length} outputs` : "network"),
      swatch("bend", "breakpoint"));
    const ys = [...answer.output, ...answer.target].flat();
    const [low, high] = [Math.min(...ys), Math.max(...ys)];
    const base = low - 0.06 * (high - low || 1);
    charts[0].draw(() => ({
      height: 310, marginLeft: 52, marginBottom: 40, marginTop: 28, x: {label: certified ? "x" : "t", nice: false}, y: {label: "value", grid: true, domain: [base, high]},
      marks: [
        ...answer.target.map((values) => Plot.line(values, {x: answer.x, y: (v) => v, stroke: "var(--line)", strokeWidth: 6})),
        ...answer.output.map((values, i) => Plot.line(values, {x: answer.x, y: (v) => v, strokeWidth: 2,
          stroke: several ? tools.COLOURS[i % tools.COLOURS.length] : "var(--series-1)"})),
        Plot.ruleX(answer.pieces?.breakpoints ?? [], {y1: base, y2: base + 0.045 * (high - base), stroke: "var(--series-2)", strokeWidth: 1.5}),
      ],
    }));
    if (!certified) return;
    const {bound, kind: what} = answer.certificate;
    const largest = Math.max(...answer.error);
    const top = Math.max(bound, largest) * 1.25 || 1;
    charts[1].draw(() => ({
      height: 210, marginLeft: 60, marginBottom: 40, marginTop: 28, x: {label: "x", nice: false}, y: {label: "error", domain: [0, top], tickFormat: tick, ticks: 4, grid: true},
      marks: [
        Plot.areaY(answer.error, {x: answer.x, y: (v) => v, fill: "var(--series-2)", fillOpacity: 0.25}),
        Plot.line(answer.error, {x: answer.x, y: (v) => v, stroke: "var(--series-2)", strokeWidth: 1.5}),
        Plot.ruleY([bound], {stroke: "var(--text)", strokeDasharray: "6 4"}),
        Plot.text([bound], {y: (v) => v, frameAnchor: "right", dx: -4, dy: -9,
          text: () => `bound on the ${what} error ${format(bound)}`, fill: "var(--text)"}),
      ],
    }));
  };

  const square = (answer) => {
    const {charts, legend} = kind("square", "Function, network, error", ["The function", "The network's output", "The error"]);
    legend.replaceChildren("Light colours are high values. The error has its own scale.");
    const [[x1, x2], [y1, y2]] = answer.domain;
    const both = [...answer.target, ...answer.output];
    const range = [Math.min(...both), Math.max(...both)];
    const panel = (title, values, domain, scheme) => (width) => ({
      height: width + 20, marginLeft: 30, marginRight: 8, marginTop: 26, marginBottom: 32,
      x: {label: null, domain: [x1, x2], ticks: 3}, y: {label: null, domain: [y1, y2], ticks: 3},
      color: {scheme, domain, legend: true, label: title, width: Math.min(width, 220), ticks: 3, tickFormat: tick},
      marks: [tools.Plot.raster(values, {width: answer.side, height: answer.side, x1, x2, y1, y2})],
    });
    charts[0].draw(panel("function", answer.target, range, "viridis"));
    charts[1].draw(panel("network", answer.output, range, "viridis"));
    charts[2].draw(panel("error", answer.error, [0, Math.max(...answer.error) || 1], "magma"));
  };

  // -- numbers ---------------------------------------------------------------------------------

  const numbers = (answer) => {
    const rows = [["hidden units", format(answer.nodes)], ["layers of weights", format(answer.layers)],
      ["weights and biases that are not zero", format(answer.nonzeros)]];
    const certificate = answer.certificate;
    if (certificate) {
      const {kind, bound, points, measured, holds} = certificate;
      rows.unshift([`proven bound on the ${kind} error`, format(bound)],
        [`${kind} error measured at ${format(points)} points`,
          el("span", {class: holds ? "good" : "bad"}, `${format(measured)} ${holds ? "✓ holds" : "✗ above the bound"}`)]);
    }
    const pieces = answer.pieces;
    if (pieces) {
      const most = pieces.bound === null ? `10^${format(pieces.log10_bound)}` : format(pieces.bound);
      rows.push(["affine pieces, counted exactly", format(pieces.count)], ["upper bound on pieces, from the widths", most]);
    } else if (answer.dims === 1) rows.push(["affine pieces", "too many to count here"]);
    facts.replaceChildren(el("dl", {class: "facts"}, ...rows.flatMap(([name, value]) => [el("dt", {}, name), el("dd", {class: "number"}, value)])));
    const texts = [...answer.notes];
    if (pieces && pieces.shown < pieces.count - 1) texts.push(`Only the first ${format(pieces.shown)} breakpoints are marked.`);
    notes.replaceChildren(...texts.map((text) => el("li", {}, text)));
    notes.hidden = !texts.length;
  };

  // -- the network -----------------------------------------------------------------------------

  const widthsChart = chart(null, {label: "Units in every layer"});
  const network = ({graph: {widths, edges}}) => {
    graphNote.textContent = edges
      ? "Inputs on the left. Blue weights are positive, orange ones negative; wider lines are larger weights of the layer."
      : `${widths.join("–").length < 90 ? widths.join("–") : `${widths.length - 1} layers`}: too large to draw every unit; the bars show the width of each layer.`;
    if (edges) {
      graph.replaceChildren(drawing(widths, edges));
      return;
    }
    graph.replaceChildren(widthsChart);
    widthsChart.draw(() => ({
      height: 210, marginLeft: 52, marginTop: 28, x: {label: "layer", type: "band", ticks: [], tickFormat: () => ""}, y: {label: "units", grid: true},
      marks: [tools.Plot.barY(widths, {x: (_, i) => i, y: (v) => v, fill: "var(--series-1)"})],
    }));
  };

  const drawing = (widths, edges) => {
    const rows = Math.max(...widths);
    const [stepX, stepY] = [Math.max(46, Math.min(120, 640 / Math.max(1, widths.length - 1))), Math.max(9, Math.min(34, 300 / rows))];
    const [w, h] = [stepX * (widths.length - 1) + 40, Math.max(60, stepY * (rows - 1) + 40)];
    const at = (layer, unit) => [20 + layer * stepX, h / 2 + (unit - (widths[layer] - 1) / 2) * stepY];
    const svg = tools.d3.create("svg:svg").attr("viewBox", [0, 0, w, h]).attr("width", w).attr("height", h).attr("class", "network")
      .attr("role", "img").attr("aria-label", `Layers of ${widths.join(", ")} units`);
    const largest = widths.map((_, layer) => Math.max(...edges.filter((e) => e[0] === layer).map((e) => Math.abs(e[3])), 1e-300));
    svg.append("g").selectAll("line").data(edges).join("line")
      .attr("x1", ([l, i]) => at(l, i)[0]).attr("y1", ([l, i]) => at(l, i)[1])
      .attr("x2", ([l, , o]) => at(l + 1, o)[0]).attr("y2", ([l, , o]) => at(l + 1, o)[1])
      .attr("class", (e) => (e[3] > 0 ? "positive" : "negative"))
      .attr("stroke-width", (e) => 0.4 + 2.1 * Math.sqrt(Math.abs(e[3]) / largest[e[0]]))
      .append("title").text((e) => format(e[3]));
    svg.append("g").selectAll("circle").data(widths.flatMap((count, layer) => Array.from({length: count}, (_, unit) => at(layer, unit)))).join("circle")
      .attr("cx", (p) => p[0]).attr("cy", (p) => p[1]).attr("r", Math.min(7, stepY * 0.36));
    return svg.node();
  };

  await choose(chooser.value);
}

// Which model?: how many parameters a plain network, an embedding method and a hypernetwork need, by the theorems.

const SUPERSCRIPT = "⁰¹²³⁴⁵⁶⁷⁸⁹";
const power = (exponent) =>
  `10${String(exponent).replace("-", "⁻").replace(/\d/g, (digit) => SUPERSCRIPT[digit])}`;
// Values of the slider for the error: 1, 2 and 5 in every decade.
const ERRORS = [-6, -5, -4, -3, -2, -1].flatMap((e) => [1, 2, 5].map((m) => Number(`${m}e${e}`)));
const ORDER = ["plain", "embedding", "embedding_any", "primary", "total"];

export async function mount(section, tools) {
  const {el, api, field, slider, status, chart, card, debounce, latest, format, COLOURS} = tools;
  const progress = status();
  const colour = (method) => COLOURS[ORDER.indexOf(method)];
  const dash = (method) => (ORDER.indexOf(method) % 2 ? "9 7" : null); // lines may overlap

  const number = (label, attributes, hint) => {
    const input = el("input", {type: "number", step: 1, inputmode: "numeric", ...attributes});
    input.addEventListener("input", () => again());
    return {node: field(label, input, hint), input};
  };
  const m1 = number("Numbers in an input x", {min: 1, max: 1000, value: 1}, "m1: a point in a picture has 2");
  const m2 = number("Numbers in a condition I", {min: 1, max: 1000, value: 2}, "m2: what selects the task");
  const smooth = slider({label: "Smoothness r", min: 1, max: 8, value: 1, hint: "bounded derivatives of y(x, I)", onInput: () => again()});
  const eps = slider({label: "Largest error", values: ERRORS, value: 0.01, format: (e) => format(e), onInput: () => again()});
  const selector = number("Numbers that decide the weights", {min: 1, max: 1000000, placeholder: "not known"},
    "w of Theorem 6: the weights of g are linear in w functions of the condition");
  const measured = el("input", {type: "checkbox", on: {change: () => again()}});
  const calibrate = el("div", {class: "check"}, measured, el("label", {}, "Use constants measured on networks built by hand"));
  measured.id = tools.unique("measured");
  calibrate.lastChild.htmlFor = measured.id;

  const advice = el("p", {class: "lead", "aria-live": "polite"});
  const rows = el("div");
  const lines = chart(null, {label: "Number of parameters against the largest error, one line for each kind of network"});
  const source = el("p", {class: "hint"});
  const assumptions = el("ul", {class: "plain"});
  const answers = el("div", {class: "stack", hidden: true},
    card("Advice", advice),
    card("Parameters", rows, lines, source),
    card("Assumptions", assumptions));

  section.append(
    el("p", {}, "How many parameters does a network need to approximate a function y(x, I) of an input and a condition, everywhere within a given error? The answer of Theorems 2 to 6 of “On the Modularity of Hypernetworks”."),
    el("div", {class: "columns"},
      card("The function", m1.node, m2.node, smooth.node, eps.node, selector.node, calibrate, progress.node), answers));

  const show = (answer, wanted) => {
    calibrate.hidden = !answer.can_calibrate;
    advice.textContent = answer.advice;
    rows.replaceChildren(tools.table(["network", "parameters", "grows like"], answer.rows.map((row) => [
      el("div", {class: "key"}, key(row.method), el("div", {}, row.name, el("div", {class: "hint"},
        row.kind === "built" ? `built; rate of ${row.theorem}` : `${row.kind}, ${row.theorem}`))),
      el("span", {class: "number"}, row.parameters),
      el("span", {}, "eps", el("sup", {}, `−${format(row.exponent)}`)),
    ]), {caption: `At an error of ${format(wanted.eps)}`}));
    if (answer.silent.length) rows.append(el("p", {class: "hint"}, `Not measured: ${answer.silent.join(", ")}.`));
    source.textContent = answer.calibration ?? "The theorems give the slopes of the lines, but not the constants: all constants are 1 here.";
    assumptions.replaceChildren(...answer.assumptions.map((text) => el("li", {}, text)));
    lines.draw((width) => figure(answer, wanted, width));
  };

  const key = (method) => tools.d3.create("svg:svg").attr("class", "swatch").attr("aria-hidden", "true").call((svg) =>
    svg.append("line").attr("x1", 0).attr("x2", 22).attr("y1", 5).attr("y2", 5).attr("stroke", colour(method))
      .attr("stroke-width", 2.5).attr("stroke-dasharray", dash(method))).node();

  const figure = (answer, wanted, width) => {
    const {Plot} = tools;
    const [high, low] = [answer.errors[0], answer.errors.at(-1)];
    const ticks = [-12, -11, -10, -9, -8, -7, ...Array.from({length: 7}, (_, i) => i - 6)]
      .flatMap((e) => (width > 480 ? [1, 2, 5] : [1]).map((m) => Number(`${m}e${e}`)))
      .filter((e) => e >= low * 0.999 && e <= high * 1.001);
    const marks = answer.rows.map(({method}) => Plot.line(answer.lines[method], {
      x: answer.errors, y: (value) => value, stroke: colour(method), strokeWidth: 2.5, strokeDasharray: dash(method),
    }));
    return {
      height: 320, marginLeft: 52, marginBottom: 40,
      x: {type: "log", reverse: true, label: "largest error", tickFormat: (e) => format(e), ticks},
      y: {label: "parameters", tickFormat: (e) => (Number.isInteger(e) ? power(e) : ""), grid: true, zero: true, ticks: 6},
      marks: [
        Plot.ruleX([wanted.eps], {stroke: "var(--muted)", strokeDasharray: "2 3"}),
        ...marks,
        Plot.dot(answer.rows, {x: () => wanted.eps, y: "log10", fill: (row) => colour(row.method), r: 5}),
      ],
    };
  };

  const ask = latest(async () => {
    const wanted = {m1: m1.input.value, m2: m2.input.value, smoothness: smooth.value, eps: eps.value, calibrate: measured.checked};
    if (selector.input.value) wanted.selector = selector.input.value;
    const answer = await progress.during("Computing", () => api(`/api/sizes/rates?${new URLSearchParams(wanted)}`));
    if (!answer) return;
    answers.hidden = false;
    show(answer, wanted);
  });
  const again = debounce(ask, 120);
  await ask();
}

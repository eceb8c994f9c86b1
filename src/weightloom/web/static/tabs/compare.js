// Same network?: what is in one or two safetensors files, and whether they are the same function.

export async function mount(section, tools) {
  const {el, api, select, status, chart, card, button, format, table, download, unique} = tools;
  const {activations, examples, limit} = await api("/api/compare/options");
  const progress = status();
  const chosen = [null, null]; // {key, name} of each file
  let asked = 0;

  // -- choosing --------------------------------------------------------------------------------

  const zone = (at, title) => {
    const input = el("input", {type: "file", accept: ".safetensors", id: unique("file"), class: "file"});
    const name = el("span", {class: "name muted"}, "Drop a file here, or choose one");
    const label = el("label", {for: input.id, class: "drop"}, el("strong", {}, title), name);
    const clear = el("button", {type: "button", class: "quiet", hidden: true, "aria-label": `Remove ${title.toLowerCase()}`}, "Remove");
    const node = el("div", {class: "zone"}, input, label, clear);
    const take = (file) => file && put(at, file);
    input.addEventListener("change", () => { take(input.files[0]); input.value = ""; });
    for (const kind of ["dragenter", "dragover"]) {
      label.addEventListener(kind, (event) => { event.preventDefault(); label.classList.add("over"); });
    }
    for (const kind of ["dragleave", "drop"]) label.addEventListener(kind, () => label.classList.remove("over"));
    label.addEventListener("drop", (event) => {
      event.preventDefault();
      const files = [...event.dataTransfer.files];
      if (files.length > 1) putBoth(files.slice(0, 2)); else take(files[0]);
    });
    clear.addEventListener("click", () => { chosen[at] = null; show(null); input.focus(); ask(); });
    const show = (file) => {
      name.textContent = file ? `${file.name} · ${size(file.size)}` : "Drop a file here, or choose one";
      name.classList.toggle("muted", !file);
      clear.hidden = !file;
    };
    return {node, show};
  };
  const size = (bytes) => (bytes < 1e3 ? `${bytes} bytes` : bytes < 1e6 ? `${format(bytes / 1e3)} kB` : `${format(bytes / 1e6)} MB`);
  const zones = [zone(0, "First network"), zone(1, "Second network")];

  const upload = async (file) => {
    if (file.size > limit) {
      throw new Error(`${file.name} has ${size(file.size)}, and the page reads at most ${size(limit)}. For larger files, use weightloom inspect.`);
    }
    const {key} = await api("/api/compare/upload", file.slice());
    return {key, name: file.name};
  };
  const put = (at, file) => progress.during("Reading", async () => {
    zones[at].show(file);
    chosen[at] = null;
    answers.replaceChildren();
    chosen[at] = await upload(file);
  }).then(() => chosen[at] && ask());
  const putBoth = (files) => progress.during("Reading", async () => {
    answers.replaceChildren();
    for (const [at, file] of files.entries()) {
      zones[at].show(file);
      chosen[at] = await upload(file);
    }
    return true;
  }).then((done) => done && ask());

  const activation = select({
    label: "Activation between layers", options: [["", "from the file, else ReLU"], ...activations], value: "", onChange: () => ask(),
    hint: "A safetensors file holds weights, but not always the activation.",
  });
  const kind = select({label: "No file at hand?", options: examples});
  const tryIt = button("Try this example", async () => {
    const files = await progress.during("Building two networks", () => Promise.all([1, 2].map(async (number) => {
      const blob = await api(`/api/compare/example/${kind.value}/${number}`, undefined, {blob: true});
      return new File([blob], `example-${number === 1 ? "a" : "b"}.safetensors`);
    })));
    if (files) await putBoth(files);
  });

  const answers = el("div", {class: "stack", "aria-live": "polite"});
  section.append(
    el("p", {}, "Are two networks the same function? Their weights may differ: units can be permuted, rescaled, cloned or idle. Drop one file to see what is in it, or two to compare them. Only safetensors files are read; pickles are refused, because they may run code."),
    el("div", {class: "columns"},
      card("Networks", zones[0].node, zones[1].node, activation.node, kind.node, tryIt, progress.node),
      answers));

  // -- asking ----------------------------------------------------------------------------------

  const wanted = () => activation.value || null;
  const ask = async () => {
    const files = chosen.filter(Boolean);
    const now = ++asked;
    answers.replaceChildren();
    if (!files.length) return;
    const answer = await progress.during("Comparing", () => api("/api/compare/inspect", {files, activation: wanted()}));
    if (now !== asked) return;
    if (!answer) {
      const text = progress.node.textContent;
      if (text.includes("--")) progress.node.append(el("p", {class: "hint"}, "Options that begin with -- belong to the command `weightloom inspect`, which can also use a network's own code."));
      return;
    }
    const facts = el("div");
    const bounds = files.map(() => undefined);
    const draw = () => facts.replaceChildren(both(answer, bounds));
    draw();
    answers.append(...[
      answer.equivalence && verdict(answer),
      answer.matched?.length && matched(answer),
      answer.mixed && interpolation(answer.mixed),
      card(files.length > 1 ? "The two networks" : answer.networks[0].name, facts),
      ...answer.networks.map((network, at) => network.removed.length && redundant(network, files[at])),
      assumed(answer.networks),
    ].filter(Boolean));
    for (const [at, file] of files.entries()) {
      const answered = await api("/api/compare/bounds", {files: [file], activation: wanted()})
        .catch((error) => ({bounds: null, reason: error.message}));
      if (now !== asked) return;
      bounds[at] = answered;
      draw();
    }
  };

  // -- showing ---------------------------------------------------------------------------------

  const TITLES = {same: ["good", "The same function"], different: ["bad", "Different functions"], undecided: ["open", "Undecided"]};
  const verdict = ({equivalence}) => {
    const [look, words] = TITLES[equivalence.answer];
    const title = el("p", {class: `verdict ${look}`}, equivalence.condition ? `${words}, if ${equivalence.condition}` : words);
    const numbers = [
      equivalence.weight_deviation === null ? "units without a partner" : `weights ${format(equivalence.weight_deviation)} of their size (tolerance ${format(equivalence.tolerance)})`,
      equivalence.output_deviation === null ? "outputs not compared" : `outputs on ${equivalence.probes} inputs ${format(equivalence.output_deviation)}`,
    ];
    const tried = Object.entries(equivalence.tried);
    return card(null, title,
      equivalence.missing && equivalence.answer === "undecided" && el("p", {}, `Missing: ${equivalence.missing}.`),
      equivalence.mismatch && equivalence.answer !== "same" && el("p", {}, `First difference: ${equivalence.mismatch}.`),
      equivalence.probe && el("p", {}, `They differ at (${equivalence.probe.input.map((value) => format(value)).join(", ")}): ${equivalence.probe.outputs.map((values) => `(${values.map((value) => format(value)).join(", ")})`).join(" and ")}.`),
      equivalence.reduced && el("p", {}, "After removal of clones and idle units."),
      new Set(Object.values(equivalence.tried)).size > 1 && el("p", {class: "muted"}, `The files do not say their activation. ${tried.map(([name, answer]) => `${name}: ${answer}`).join("; ")}.`),
      el("p", {class: "muted"}, `Largest differences: ${numbers.join("; ")}.`));
  };

  const matched = ({matched: layers, equivalence}) => card("Matched units",
    el("p", {class: "muted"}, `Row: unit of the first network${equivalence.reduced ? " (reduced)" : ""}; column: its partner in the second. Orange: negative sign. Hover for the scale.`),
    el("div", {class: "matrices"}, ...layers.map((layer) => el("figure", {},
      layer.units <= 40 ? matrix(layer) : el("p", {}, `${layer.moved} of ${layer.units} units are permuted.`),
      el("figcaption", {class: "hint"}, `Layer ${layer.layer}: ${layer.moved} of ${layer.units} units permuted${scales(layer)}`)))));
  const scales = ({factor}) => (factor && factor.some((each) => each !== 1)
    ? `, scales ${format(Math.min(...factor))} to ${format(Math.max(...factor))}` : "");
  const matrix = ({permutation, factor, layer}) => {
    const n = permutation.length, cell = Math.max(5, Math.min(16, 200 / n));
    const svg = tools.d3.create("svg:svg").attr("viewBox", [0, 0, n * cell, n * cell]).attr("width", n * cell).attr("height", n * cell)
      .attr("class", "matrix").attr("role", "img").attr("aria-label", `Layer ${layer}: ${permutation.map((to, from) => `${from} is ${to}`).join(", ")}`);
    svg.append("rect").attr("class", "frame").attr("width", n * cell).attr("height", n * cell);
    svg.selectAll("rect.unit").data(permutation).join("rect").attr("class", (_, i) => `unit ${(factor?.[i] ?? 1) < 0 ? "negative" : ""}`)
      .attr("x", (to) => to * cell).attr("y", (_, i) => i * cell).attr("width", cell).attr("height", cell)
      .append("title").text((to, i) => `unit ${i} is unit ${to} of the second${factor ? `, times ${format(factor[i])}` : ""}`);
    return svg.node();
  };

  const interpolation = (path) => {
    const {Plot} = tools;
    const points = ["given", "aligned"].flatMap((way) => path.t.map((t, i) => ({t, way, value: path[way][i]})));
    const lines = chart(() => ({
      height: 240, marginLeft: 56, marginBottom: 42, marginTop: 28, x: {label: "from the first's weights (0) to the second's (1)"},
      y: {label: "squared distance from the first's outputs", grid: true, zero: true, nice: true},
      marks: ["given", "aligned"].map((way, i) => Plot.lineY(points.filter((p) => p.way === way), {x: "t", y: "value", stroke: tools.COLOURS[1 - i], strokeWidth: 2.5, marker: "dot"})),
    }), {label: "Distance of interpolated networks' outputs, before and after alignment"});
    return card("Interpolation between the two",
      el("p", {class: "legend hint"}, el("span", {class: "key"}, el("span", {class: "line second"}), "as given"), el("span", {class: "key"}, el("span", {class: "line"}), "units aligned")),
      lines,
      el("p", {class: "muted"}, `Interpolated weights, run on ${path.probes} random inputs. Alignment reduces the distance between the weights from ${format(path.distance_before)} to ${format(path.distance_after)}.`));
  };

  const both = ({networks, equivalence}, bounds) => {
    const of = (show) => networks.map((network, at) => show(network, bounds[at]));
    const bound = (show) => of((_, answered) => (answered === undefined ? "…" : answered.bounds ? show(answered.bounds) : "not available"));
    const range = (p) => bound(({lipschitz: {[p]: {lower, upper, log_upper: logUpper}}}) => {
      const high = upper === null ? `10^${format(logUpper / Math.LN10)}` : format(upper);
      return lower === null ? `at most ${high}` : `${format(lower)} to ${high}`;
    });
    const rows = [
      ["parameters", ...of((n) => n.parameters.toLocaleString("en-GB"))],
      ["dtype", ...of((n) => n.dtype)],
      ["widths", ...bound((b) => (b.widths.length < 9 ? b.widths.join("–") : `${b.widths.slice(0, 4).join("–")}–…–${b.widths.slice(-2).join("–")}`))],
      ["activation", ...of((n) => n.activation ?? "")],
      ["fingerprint", ...of((n) => (n.fingerprint ? el("code", {}, n.fingerprint.slice(0, 12)) : "not available"))],
      ["normal", ...of((n) => (n.normality ? (n.normality.normal ? "yes: no redundant unit" : `no: ${n.normality.removable} redundant units`) : "not available"))],
      ["Lipschitz, 1-norm", ...range("1")], ["Lipschitz, 2-norm", ...range("2")], ["Lipschitz, max norm", ...range("inf")],
      ["permutations of units", ...bound((b) => `10^${format(b.log_group_order / Math.LN10)}`)],
      ["covering number", ...bound((b) => (b.covering.rigorous ? `10^${format(b.covering.rigorous.log / Math.LN10)} at ${format(b.settings.epsilon)}` : "not available"))],
    ];
    const [first, second] = networks.map((n) => n.fingerprint);
    const differs = equivalence?.same && first && second && first !== second
      && "The fingerprints differ although the function is the same: they depend on every bit, and rescaling rounds.";
    const reasons = of((network, answered) => answered?.reason && `${network.name}: no bounds: ${answered.reason}`)
      .concat(networks.flatMap((n) => Object.entries(n.not_available).map(([topic, why]) => `${n.name}: no ${topic}: ${why}`))).concat(differs).filter(Boolean);
    return el("div", {class: "stack"}, table(["", ...networks.map((n) => n.name)], rows, {caption: "What is in the files"}),
      reasons.length > 0 && el("ul", {class: "plain"}, ...reasons.map((text) => el("li", {}, text))));
  };

  const redundant = (network, file) => {
    const saving = status();
    const save = button("Download it without them", async () => {
      const query = new URLSearchParams({name: file.name, ...(wanted() && {activation: wanted()})});
      const blob = await saving.during("Reducing", () => api(`/api/compare/reduced/${file.key}?${query}`, undefined, {blob: true}));
      if (blob) download(`${file.name.replace(/\.safetensors$/, "")}-reduced.safetensors`, blob);
    }, {kind: "main"});
    return card(`Redundant in ${network.name}`, el("p", {}, `${network.normality.removable} units can be removed without changing any output.`),
      el("ul", {class: "plain"}, ...network.removed.map((text) => el("li", {}, text))), el("div", {class: "row"}, save, saving.node));
  };

  const assumed = (networks) => {
    const texts = [...new Set(networks.flatMap((n) => n.assumptions))];
    return texts.length > 0 && card("Assumed, because the file does not show it", el("ul", {class: "plain"}, ...texts.map((text) => el("li", {}, text))));
  };
}

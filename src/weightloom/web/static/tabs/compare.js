// Same network?: one or two safetensors files; what is in them, whether they are the same function, what was matched.

export async function mount(section, tools) {
  const {el, api, select, status, chart, card, button, format, table, download, unique} = tools;
  const {activations, examples, limit} = await api("/api/compare/options");
  const says = status();
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
      throw new Error(`${file.name} has ${size(file.size)}; at most ${size(limit)} can be read here. weightloom inspect reads larger files.`);
    }
    const {key} = await api("/api/compare/upload", file.slice());
    return {key, name: file.name};
  };
  const put = (at, file) => says.during("Reading", async () => {
    zones[at].show(file);
    chosen[at] = null;
    answers.replaceChildren();
    chosen[at] = await upload(file);
  }).then(() => chosen[at] && ask());
  const putBoth = (files) => says.during("Reading", async () => {
    answers.replaceChildren();
    for (const [at, file] of files.entries()) {
      zones[at].show(file);
      chosen[at] = await upload(file);
    }
    return true;
  }).then((done) => done && ask());

  const activation = select({
    label: "Activation between layers", options: [["", "what the file says, else relu"], ...activations], value: "", onChange: () => ask(),
    hint: "A safetensors file holds weights; it does not say what stands between them.",
  });
  const kind = select({label: "No file at hand?", options: examples});
  const tryIt = button("Try this example", async () => {
    const files = await says.during("Making two networks", () => Promise.all([1, 2].map(async (number) => {
      const blob = await api(`/api/compare/example/${kind.value}/${number}`, undefined, {blob: true});
      return new File([blob], `example-${number === 1 ? "a" : "b"}.safetensors`);
    })));
    if (files) await putBoth(files);
  });

  const answers = el("div", {class: "stack", "aria-live": "polite"});
  section.append(
    el("p", {}, "Two networks can have different weights and be the same function: units exchanged, rescaled, cloned or idle. Drop one file to see what is in it, two to compare them. Only safetensors files are read; pickles are refused, because they may run code."),
    el("div", {class: "columns"},
      card("Networks", zones[0].node, zones[1].node, activation.node, kind.node, tryIt, says.node),
      answers));

  // -- asking ----------------------------------------------------------------------------------

  const wanted = () => activation.value || null;
  const ask = async () => {
    const files = chosen.filter(Boolean);
    const now = ++asked;
    answers.replaceChildren();
    if (!files.length) return;
    const answer = await says.during("Comparing", () => api("/api/compare/inspect", {files, activation: wanted()}));
    if (now !== asked) return;
    if (!answer) {
      const text = says.node.textContent;
      if (text.includes("--")) says.node.append(el("p", {class: "hint"}, "Options that begin with -- belong to the command `weightloom inspect`, which can also use a network's own code."));
      return;
    }
    const facts = el("div");
    const bounds = files.map(() => undefined);
    const draw = () => facts.replaceChildren(both(answer, bounds));
    draw();
    answers.append(...[
      answer.equivalence && verdict(answer),
      answer.matched?.length && matched(answer),
      answer.mixed && mixed(answer.mixed),
      card(files.length > 1 ? "The two networks" : answer.networks[0].name, facts),
      ...answer.networks.map((network, at) => network.removed.length && redundant(network, files[at])),
      assumed(answer.networks),
    ].filter(Boolean));
    for (const [at, file] of files.entries()) {
      const found = await api("/api/compare/bounds", {files: [file], activation: wanted()})
        .catch((error) => ({bounds: null, reason: error.message}));
      if (now !== asked) return;
      bounds[at] = found;
      draw();
    }
  };

  // -- showing ---------------------------------------------------------------------------------

  const verdict = ({equivalence: found}) => {
    const title = el("p", {class: `verdict ${found.same ? "good" : "bad"}`}, found.same ? "The same function" : "Not found to be the same");
    const numbers = [
      found.weight_deviation === null ? "units without a partner" : `weights deviate by ${format(found.weight_deviation)} (${format(found.tolerance)} is allowed)`,
      found.output_deviation === null ? "outputs were not run" : `outputs on ${found.probes} random inputs by ${format(found.output_deviation)}`,
    ];
    return card(null, title,
      found.mismatch && el("p", {}, `First difference: ${found.mismatch}.`),
      found.reduced && el("p", {}, "After clones and idle units were removed."),
      el("p", {class: "muted"}, `Largest differences: ${numbers.join("; ")}.`));
  };

  const matched = ({matched: layers, equivalence}) => card("What was matched",
    el("p", {class: "muted"}, `Row: unit of the first network${equivalence.reduced ? " (reduced)" : ""}; column: its partner in the second. Orange: with a negative sign. Hover for the scale.`),
    el("div", {class: "matrices"}, ...layers.map((layer) => el("figure", {},
      layer.units <= 40 ? matrix(layer) : el("p", {}, `${layer.moved} of ${layer.units} units changed places.`),
      el("figcaption", {class: "hint"}, `Layer ${layer.layer}: ${layer.moved} of ${layer.units} units moved${scales(layer)}`)))));
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

  const mixed = (found) => {
    const {Plot} = tools;
    const points = ["given", "aligned"].flatMap((way) => found.t.map((t, i) => ({t, way, value: found[way][i]})));
    const lines = chart(() => ({
      height: 230, marginLeft: 56, marginBottom: 42, x: {label: "from the first's weights (0) to the second's (1)"},
      y: {label: "squared distance from the first's outputs", grid: true, zero: true, nice: true},
      marks: ["given", "aligned"].map((way, i) => Plot.lineY(points.filter((p) => p.way === way), {x: "t", y: "value", stroke: tools.COLOURS[1 - i], strokeWidth: 2.5, marker: "dot"})),
    }), {label: "Distance of mixed networks' outputs, before and after alignment"});
    return card("Between the two",
      el("p", {class: "legend hint"}, el("span", {class: "key"}, el("span", {class: "line second"}), "as given"), el("span", {class: "key"}, el("span", {class: "line"}), "units aligned")),
      lines,
      el("p", {class: "muted"}, `Weights are mixed and run on ${found.probes} random inputs. Aligning the second network brings its weights from a distance of ${format(found.distance_before)} to ${format(found.distance_after)}.`));
  };

  const both = ({networks, equivalence}, bounds) => {
    const of = (show) => networks.map((network, at) => show(network, bounds[at]));
    const bound = (show) => of((_, found) => (found === undefined ? "…" : found.bounds ? show(found.bounds) : "not available"));
    const range = (p) => bound(({lipschitz: {[p]: one}}) => {
      const high = one.upper === null ? `10^${format(one.log_upper / Math.LN10)}` : format(one.upper);
      return one.lower === null ? `at most ${high}` : `${format(one.lower)} to ${high}`;
    });
    const rows = [
      ["parameters", ...of((n) => n.parameters.toLocaleString("en-GB"))],
      ["numbers", ...of((n) => n.dtype)],
      ["widths", ...bound((b) => (b.widths.length < 9 ? b.widths.join("–") : `${b.widths.slice(0, 4).join("–")}–…–${b.widths.slice(-2).join("–")}`))],
      ["activation", ...of((n) => n.activation ?? "")],
      ["fingerprint", ...of((n) => (n.fingerprint ? el("code", {}, n.fingerprint.slice(0, 12)) : "not available"))],
      ["normal", ...of((n) => (n.normality ? (n.normality.normal ? "yes: no unit can go" : `no: ${n.normality.removable} units can go`) : "not available"))],
      ["steepest, 1-norm", ...range("1")], ["steepest, 2-norm", ...range("2")], ["steepest, max norm", ...range("inf")],
      ["exchanges of units", ...bound((b) => `10^${format(b.log_group_order / Math.LN10)}`)],
      ["covering number", ...bound((b) => (b.covering.rigorous ? `10^${format(b.covering.rigorous.log / Math.LN10)} at ${format(b.settings.epsilon)}` : "not available"))],
    ];
    const [one, other] = networks.map((n) => n.fingerprint);
    const differs = equivalence?.same && one && other && one !== other
      && "The fingerprints differ although the function is the same: they are taken bit by bit, and rescaling rounds.";
    const reasons = of((network, found) => found?.reason && `${network.name}: no bounds: ${found.reason}`)
      .concat(networks.flatMap((n) => Object.entries(n.not_available).map(([topic, why]) => `${n.name}: no ${topic}: ${why}`))).concat(differs).filter(Boolean);
    return el("div", {class: "stack"}, table(["", ...networks.map((n) => n.name)], rows, {caption: "What is in the files"}),
      reasons.length > 0 && el("ul", {class: "plain"}, ...reasons.map((text) => el("li", {}, text))));
  };

  const redundant = (network, file) => {
    const saves = status();
    const save = button("Download it without them", async () => {
      const query = new URLSearchParams({name: file.name, ...(wanted() && {activation: wanted()})});
      const blob = await saves.during("Reducing", () => api(`/api/compare/reduced/${file.key}?${query}`, undefined, {blob: true}));
      if (blob) download(`${file.name.replace(/\.safetensors$/, "")}-reduced.safetensors`, blob);
    }, {kind: "main"});
    return card(`Redundant in ${network.name}`, el("p", {}, `${network.normality.removable} units can go without changing any output.`),
      el("ul", {class: "plain"}, ...network.removed.map((text) => el("li", {}, text))), el("div", {class: "row"}, save, saves.node));
  };

  const assumed = (networks) => {
    const texts = [...new Set(networks.flatMap((n) => n.assumptions))];
    return texts.length > 0 && card("Assumed, because the file does not show it", el("ul", {class: "plain"}, ...texts.map((text) => el("li", {}, text))));
  };
}

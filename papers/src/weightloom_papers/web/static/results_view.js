// The Results tab: runs with filters, details of a run, figures with the paper's numbers. `source` is the server or an exported file.

const PAGE = 25;
const SCALES = ["smoke", "laptop", "paper"];

/** The data inside an exported file, as a source. */
export function embedded(held) {
  return {
    offline: true,
    runs: async () => held,
    scales: async () => held.scales,
    run: async ({key}) => held.runs[key] ?? {message: "", curves: {}, left: true},
    async figures(name) {
      const figures = held.figures[name];
      if (!figures) throw new Error("This file was exported without figures.");
      if (figures.error) throw new Error(figures.error);
      return figures;
    },
  };
}

export async function show(section, tools, source) {
  const {el, select, status, chart, card, button, field, debounce, format, table, download} = tools;
  const reading = status();
  section.append(
    el("p", {}, "Which experiments were run, and what came out? Every run in the store, with its settings, status, metrics and provenance, and the papers' figures drawn from these runs."),
    reading.node);
  const held = await reading.during("Reading the store", () => source.runs());
  if (!held) return;
  if (held.missing) {
    section.append(card("No results yet",
      el("p", {}, "There is no store at ", el("code", {}, held.store), "."),
      el("p", {}, "This creates one in a few seconds: ", el("code", {}, held.command)),
      el("p", {}, el("code", {}, "weightloom reproduce --list"), " lists all experiments with their running times. For another store: ", el("code", {}, "weightloom serve --store FILE"), ".")));
    return;
  }

  const {rows, experiments, provenances} = held;
  const about = new Map(experiments.map((each) => [each.name, each]));
  const varying = differing(rows);
  for (const row of rows) {
    row.settings = varying.get(row.experiment).filter((name) => name in row.config).map((name) => `${name}=${shown(row.config[name])}`).join(" ");
    row.text = `${row.experiment} ${Object.entries(row.config).map(([name, value]) => `${name}=${shown(value)}`).join(" ")} ${row.status} ${row.key}`.toLowerCase();
    row.commit = commit(provenances[row.made]);
  }
  let scales = null; // arrives later: the server needs seconds for it
  const view = {experiment: "", scale: "", status: "", text: "", sort: "finished", down: true, page: 0};

  // -- filters -----------------------------------------------------------------------------------

  const change = (name) => (value) => { view[name] = value; view.page = 0; draw(name === "experiment" || name === "scale"); };
  const count = new Map();
  for (const row of rows) count.set(row.experiment, (count.get(row.experiment) ?? 0) + 1);
  const experiment = select({label: "Experiment", options: [["", `all (${format(rows.length)} runs)`], ...experiments.map(({name}) => [name, `${name} (${format(count.get(name))})`])], onChange: change("experiment")});
  const scale = select({label: "Scale", options: [["", "all"], ...SCALES], onChange: change("scale")});
  const state = select({label: "Ended", options: [["", "all"], ...new Set(rows.map((row) => row.status))], onChange: change("status")});
  const words = el("input", {type: "search", placeholder: "depth=4 hyper"});
  words.addEventListener("input", debounce(() => change("text")(words.value), 150));
  scale.input.disabled = true;
  const search = field("Search settings", words);

  const matches = el("p", {class: "muted", role: "status"});
  const list = el("div");
  const pager = el("div", {class: "row"});
  const drawn = el("div", {class: "stack", hidden: true});
  section.append(...[
    held.exported && el("p", {class: "muted"}, `Exported from ${held.store} on ${held.exported} UTC. This file needs no server.`),
    problems(),
    card(null, el("div", {class: "filters"}, experiment.node, scale.node, state.node, search), !source.offline && exporter()),
    drawn,
    card("Runs", matches, list, pager),
  ].filter(Boolean));

  function problems() {
    const texts = [...held.problems];
    if (held.left_out) texts.push(`Only the newest ${format(rows.length)} runs are shown; ${format(held.left_out)} older ones are left out.`);
    return texts.length > 0 && el("details", {class: "card"}, el("summary", {}, `${texts.length} notes about the store`), el("ul", {class: "plain"}, ...texts.map((text) => el("li", {}, text))));
  }

  function exporter() {
    const exporting = status();
    const save = button("Export this page as one HTML file", async () => {
      exporting.busy("Exporting");
      try {
        const blob = await source.exported((fraction, text) => exporting.progress(fraction, text));
        exporting.done("Exported.");
        download("weightloom-results.html", blob);
      } catch (error) { exporting.error(error); }
    });
    return el("div", {class: "row"}, save, exporting.node);
  }

  // -- the list ----------------------------------------------------------------------------------

  const chosen = () => rows.filter((row) =>
    (!view.experiment || row.experiment === view.experiment) && (!view.status || row.status === view.status)
    && (!view.scale || (scales?.of[row.key] ?? []).includes(view.scale))
    && view.text.toLowerCase().split(/\s+/).every((word) => row.text.includes(word)));

  // The main metrics of the selected experiment; without one, the first metric of each run.
  const metrics = () => (view.experiment ? (about.get(view.experiment).metrics.length ? about.get(view.experiment).metrics : Object.keys(rows.find((row) => row.experiment === view.experiment).metrics)).slice(0, 3) : []);
  const first = (row) => {
    const name = about.get(row.experiment).metrics.find((each) => each in row.metrics) ?? Object.keys(row.metrics)[0];
    return name === undefined ? "" : `${name} ${value(row.metrics[name])}`;
  };

  function columns() {
    const numbers = metrics().map((name) => ({name, title: name, number: true, of: (row) => Number(row.metrics[name] ?? NaN), cell: (row) => value(row.metrics[name])}));
    return [
      !view.experiment && {name: "experiment", title: "experiment", of: (row) => row.experiment, cell: (row) => row.experiment},
      {name: "settings", title: "settings that differ", of: (row) => row.settings, cell: (row) => el("span", {class: "settings"}, row.settings || "none")},
      {name: "seed", title: "seed", number: true, of: (row) => row.seed, cell: (row) => String(row.seed)},
      {name: "status", title: "ended", of: (row) => row.status, cell: (row) => el("span", {class: `ended ${row.status}`}, row.status)},
      ...(numbers.length ? numbers : [{name: "number", title: "main number", of: first, cell: first}]),
      {name: "seconds", title: "seconds", number: true, of: (row) => row.seconds, cell: (row) => format(row.seconds)},
      {name: "finished", title: "finished (UTC)", of: (row) => row.finished, cell: (row) => row.finished.slice(0, 16).replace("T", " ")},
      {name: "commit", title: "commit", of: (row) => row.commit, cell: (row) => el("code", {}, row.commit || "none")},
    ].filter(Boolean);
  }

  function draw(figure = false) {
    const cols = columns();
    const by = cols.find((col) => col.name === view.sort) ?? cols.find((col) => col.name === "finished");
    const order = (a, b) => {
      const [x, y] = [by.of(a), by.of(b)];
      if (typeof x === "number") return Number.isNaN(x) - Number.isNaN(y) || (Number.isNaN(x) ? 0 : x - y);
      return x < y ? -1 : x > y ? 1 : 0;
    };
    const all = chosen().sort(order);
    if (view.down) all.reverse();
    const pages = Math.max(1, Math.ceil(all.length / PAGE));
    view.page = Math.min(view.page, pages - 1);
    const here = all.slice(view.page * PAGE, (view.page + 1) * PAGE);
    matches.textContent = all.length ? `${format(all.length)} of ${format(rows.length)} runs` : "No run matches these filters.";
    const header = cols.map((col) => {
      const active = by === col;
      const sort = el("button", {type: "button", class: "sort", on: {click: () => { view.down = active ? !view.down : Boolean(col.number); view.sort = col.name; view.page = 0; draw(); focusSort(col.name); }}},
        col.title, el("span", {"aria-hidden": "true"}, active ? (view.down ? " ↓" : " ↑") : ""));
      return el("th", {scope: "col", class: col.number && "number", data: {column: col.name}, "aria-sort": active ? (view.down ? "descending" : "ascending") : "none"}, sort);
    });
    const body = here.flatMap((row) => {
      const more = el("tr", {class: "more", hidden: true}, el("td", {colspan: cols.length + 1}));
      const open = el("button", {type: "button", class: "open", "aria-expanded": "false", "aria-label": `Details of run ${row.key.slice(0, 8)}`}, "+");
      open.addEventListener("click", () => {
        more.hidden = !more.hidden;
        open.textContent = more.hidden ? "+" : "−";
        open.setAttribute("aria-expanded", String(!more.hidden));
        if (!more.hidden && !more.firstChild.firstChild) more.firstChild.append(details(row));
      });
      return [el("tr", {}, el("td", {}, open), ...cols.map((col) => el("td", {class: col.number && "number"}, col.cell(row)))), more];
    });
    list.replaceChildren(el("div", {class: "scroll", tabindex: "0", role: "region", "aria-label": "runs"},
      el("table", {class: "runs"}, el("thead", {}, el("tr", {}, el("th", {}), ...header)), el("tbody", {}, ...body))));
    list.hidden = !all.length;
    const turn = (text, to) => el("button", {type: "button", disabled: to < 0 || to >= pages, on: {click: () => { view.page = to; draw(); }}}, text);
    pager.replaceChildren(turn("Previous", view.page - 1), el("span", {class: "muted"}, `page ${view.page + 1} of ${pages}`), turn("Next", view.page + 1));
    pager.hidden = pages < 2;
    if (figure) figures();
  }
  const focusSort = (name) => list.querySelector(`th[data-column="${CSS.escape(name)}"] button`)?.focus();

  // -- one run -----------------------------------------------------------------------------------

  function details(row) {
    const box = el("div", {class: "stack detail"});
    const part = (title, entries) => el("div", {}, el("h4", {}, title),
      el("dl", {class: "facts"}, ...entries.flatMap(([name, each]) => [el("dt", {}, name), el("dd", {}, each)])));
    const provenance = Object.entries({...provenances[row.made], ...row.also}).map(([name, each]) => [name, shown(each)]);
    box.append(el("div", {class: "pair"},
      part("Settings", [...Object.entries(row.config).map(([name, each]) => [name, shown(each)]), ["seed", String(row.seed)]]),
      part("Numbers", Object.entries(row.metrics).map(([name, each]) => [name, value(each, 6)])),
      part("Made with", [...provenance, ["finished", row.finished], ["key", el("code", {}, row.key.slice(0, 16))]])));
    const loading = status();
    box.append(loading.node);
    loading.during("Reading the curves", async () => {
      const {curves, message, left} = await source.run(row);
      const names = Object.keys(curves).filter((name) => curves[name][0].length > 1);
      if (names.length) box.append(lines(names, curves));
      if (left) box.append(el("p", {class: "muted"}, "The curves of this run are not in this file, to limit its size."));
      if (message) box.append(el("div", {}, el("h4", {}, "Message"), el("pre", {}, message)));
    });
    return box;
  }

  function lines(names, curves) {
    const points = names.flatMap((name) => curves[name][0].map((step, i) => ({name, step, value: Number(curves[name][1][i])})));
    const finite = points.filter((p) => Number.isFinite(p.value));
    const values = finite.map((p) => p.value);
    const positive = Math.min(...values) > 0 && Math.max(...values) > 10 * Math.min(...values); // a decade or more
    const node = chart(() => ({
      height: 240, marginLeft: 58, marginBottom: 38, x: {label: "step", tickFormat: (step) => (Number.isInteger(step) ? format(step) : "")}, y: {label: "value", type: positive ? "log" : "linear", grid: true, ticks: 5, tickFormat: positive ? (v) => format(v, 1) : undefined},
      color: {legend: true, domain: names, range: names.map((_, i) => tools.COLOURS[i % tools.COLOURS.length])},
      marks: [tools.Plot.line(finite, {x: "step", y: "value", z: "name", stroke: "name", strokeWidth: 2})],
    }), {label: `Curves: ${names.join(", ")}`});
    return el("div", {}, el("h4", {}, "Curves"), node);
  }

  // -- figures -----------------------------------------------------------------------------------

  function figures() {
    drawn.replaceChildren();
    drawn.hidden = !view.experiment;
    if (!view.experiment) return;
    const {name, title, claim, paper} = about.get(view.experiment);
    const drawing = status();
    const place = el("div", {class: "stack"});
    const counts = scales?.counts[name];
    const stored = counts && SCALES.map((each) => `${each} ${format(counts[each][0])} of ${format(counts[each][1])}`).join(", ");
    const go = button("Draw from the store", () => drawing.during("Drawing", async () => {
      place.replaceChildren();
      place.append(...picture(await source.figures(name, view.scale)));
    }), {kind: "main"});
    drawn.append(card(`${name}: ${title}`,
      claim && el("p", {}, el("strong", {}, `The paper (${paper}): `), claim),
      stored && el("p", {class: "muted"}, `Stored runs: ${stored}.`),
      claim && el("div", {class: "row"}, go), drawing.node, place));
    if (source.offline && claim) go.click();
  }

  function picture({title: experimentTitle, note, figures: images, table: {columns: names, rows: cells, notes, title}}) {
    // The paper's own numbers are highlighted.
    const printed = names.map((each) => /paper|printed/i.test(each));
    const body = cells.map((row) => row.map((cell, i) => {
      const text = cell === null ? "" : typeof cell === "number" ? value(cell) : typeof cell === "boolean" ? (cell ? "yes" : "no") : String(cell);
      return printed[i] ? el("span", {class: "printed"}, text) : text;
    }));
    return [
      el("p", {class: "muted"}, note),
      ...images.map(({name, uri}) => el("img", {class: "figure", src: uri, alt: `${experimentTitle}: figure ${name}`})),
      table(names, body, {caption: title || "The numbers behind it"}),
      ...(notes.length ? [el("ul", {class: "plain"}, ...notes.filter(Boolean).map((text) => el("li", {}, text)))] : []),
    ];
  }

  // -- values ------------------------------------------------------------------------------------

  function value(each, digits = 4) {
    if (each === undefined || each === null) return "";
    return typeof each === "number" ? format(each, digits) : String(each); // "nan", "inf"
  }

  draw();
  source.scales().then((answer) => {
    scales = answer;
    scale.input.disabled = false;
    if (view.experiment && !drawn.querySelector("img")) figures();
  }, (error) => reading.error(error));
}

/** Settings that differ between the runs of an experiment, by experiment. */
function differing(rows) {
  const seen = new Map();
  for (const {experiment, config} of rows) {
    if (!seen.has(experiment)) seen.set(experiment, {runs: 0, names: new Map()});
    const at = seen.get(experiment);
    at.runs += 1;
    for (const [name, each] of Object.entries(config)) {
      if (!at.names.has(name)) at.names.set(name, {values: new Set(), runs: 0});
      at.names.get(name).values.add(shown(each));
      at.names.get(name).runs += 1;
    }
  }
  return new Map([...seen].map(([experiment, {runs, names}]) =>
    [experiment, [...names].filter(([, {values, runs: have}]) => values.size > 1 || have < runs).map(([name]) => name)]));
}

function shown(each) {
  if (Array.isArray(each)) return each.join(",");
  return each === null || each === undefined ? "none" : String(each);
}

function commit(provenance) {
  const text = String(provenance?.commit ?? "").slice(0, 7);
  return text && provenance.dirty ? `${text}+` : text;
}

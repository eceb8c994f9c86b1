// Helpers that every tab receives: requests to the server, form controls, charts.

/** Send a request. `body`: nothing (GET), an object (POST as JSON), or a Blob (POST unchanged). Returns JSON, or a Blob
 *  with {blob: true}. Throws an Error with the server's message, which can be shown to the reader. */
export async function api(path, body, {blob = false, signal} = {}) {
  const options = {signal, headers: {}};
  if (body !== undefined) {
    const raw = body instanceof Blob;
    options.method = "POST";
    options.body = raw ? body : JSON.stringify(body);
    options.headers["Content-Type"] = raw ? "application/octet-stream" : "application/json";
  }
  let response;
  try {
    response = await fetch(path, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error("The server does not respond. Is `weightloom serve` still running?");
  }
  if (response.ok) return blob ? response.blob() : response.json();
  let text = `The server answered ${response.status}.`;
  try {
    text = (await response.json()).error ?? text;
  } catch { /* no JSON: keep the text with the status */ }
  const error = new Error(text);
  error.status = response.status;
  throw error;
}

/** Create an element. Attributes: `class`, `text`, `on` = {event: handler}, `data` = {...}; true sets an attribute, false
 *  leaves it out. Children: nodes or strings (never markup); null, undefined and false are skipped. */
export function el(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (name === "on") for (const [event, handler] of Object.entries(value)) node.addEventListener(event, handler);
    else if (name === "data") Object.assign(node.dataset, value);
    else if (name === "text") node.textContent = value;
    else if (name === "value") node.value = value;
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

let serial = 0;
export const unique = (stem) => `${stem}-${++serial}`;

/** A control with its label and an optional hint, linked for screen readers. */
export function field(label, control, hint) {
  control.id ||= unique("field");
  const parts = [el("label", {for: control.id}, label), control];
  if (hint) {
    const id = unique("hint");
    control.setAttribute("aria-describedby", id);
    parts.push(el("p", {class: "hint", id}, hint));
  }
  return el("div", {class: "field"}, ...parts);
}

/** A slider that shows its value beside its label. `values`: a list to choose from, instead of min, max and step.
 *  Returns {node, value (get and set), input}. `onInput(value)` is called while it moves. */
export function slider({label, min, max, step = 1, values, value, format = String, hint, onInput}) {
  const input = el("input", values
    ? {type: "range", min: 0, max: values.length - 1, step: 1, value: values.indexOf(value)}
    : {type: "range", min, max, step, value});
  const read = () => values ? values[Number(input.value)] : Number(input.value);
  const output = el("output", {class: "number"});
  const show = () => {
    output.textContent = format(read());
    input.setAttribute("aria-valuetext", output.textContent);
  };
  show();
  input.addEventListener("input", () => { show(); onInput?.(read()); });
  const node = field("", input, hint);
  node.classList.add("slider");
  node.querySelector("label").append(el("span", {}, label), output);
  return {
    node, input,
    get value() { return read(); },
    set value(wanted) { input.value = values ? values.indexOf(wanted) : wanted; show(); },
  };
}

/** A drop-down list. `options`: strings or [value, text]. Returns {node, value (get and set), input}. */
export function select({label, options, value, hint, onChange}) {
  const input = el("select", {}, ...options.map((option) => {
    const [key, text] = Array.isArray(option) ? option : [option, option];
    return el("option", {value: key}, String(text));
  }));
  if (value !== undefined) input.value = value;
  input.addEventListener("change", () => onChange?.(input.value));
  return {
    node: field(label, input, hint), input,
    get value() { return input.value; },
    set value(wanted) { input.value = wanted; },
  };
}

/** Radio buttons side by side. `options`: [value, text]. Returns {node, value (get and set)}. */
export function choice({label, options, value, hint, onChange}) {
  const name = unique("choice");
  const inputs = options.map(([key]) =>
    el("input", {type: "radio", name, value: key, checked: key === value, id: unique("radio")}));
  const node = el("fieldset", {class: "choice"}, el("legend", {}, label),
    el("div", {class: "segments"}, ...inputs.flatMap((input, i) => [input, el("label", {for: input.id}, options[i][1])])),
    hint && el("p", {class: "hint"}, hint));
  node.addEventListener("change", () => onChange?.(read()));
  const read = () => inputs.find((input) => input.checked)?.value;
  return {
    node,
    get value() { return read(); },
    set value(wanted) { for (const input of inputs) input.checked = input.value === wanted; },
  };
}

/** A button that is disabled while the promise returned by `onClick` is pending. */
export function button(text, onClick, {kind = "", ...attributes} = {}) {
  const node = el("button", {type: "button", class: kind, ...attributes}, text);
  node.addEventListener("click", async () => {
    if (node.getAttribute("aria-disabled") === "true") return;
    node.setAttribute("aria-disabled", "true"); // not `disabled`, which would lose the focus
    try { await onClick(); } finally { node.removeAttribute("aria-disabled"); }
  });
  return node;
}

/** A status line for progress and errors. Returns {node, busy(text), done(text), error(error), progress(x, text)};
 *  `await status.during("Computing", async () => ...)` shows the text while it runs, and the error if it fails. */
export function status() {
  const node = el("div", {class: "status", role: "status", "aria-live": "polite"});
  let timer = null;
  const set = (kind, ...children) => {
    clearTimeout(timer);
    node.className = `status ${kind}`;
    node.replaceChildren(...children);
  };
  const self = {
    node,
    // Quick answers show no indicator, so that nothing flickers.
    busy(text = "Working") { clearTimeout(timer); timer = setTimeout(() => set("busy", el("span", {class: "spinner"}), `${text}…`), 250); },
    done(text = "") { set("", text); },
    error(error) { set("error", el("strong", {}, "Error: "), error?.message ?? String(error)); },
    progress(fraction, text) { set("progress", el("progress", {max: 1, value: fraction, "aria-label": text}), el("span", {}, text)); },
    async during(text, work) {
      self.busy(text);
      try {
        const result = await work();
        self.done();
        return result;
      } catch (error) {
        if (error.name === "AbortError") self.done(); else self.error(error);
        return undefined;
      }
    },
  };
  return self;
}

/** A function that runs once at a time. Of the calls made meanwhile, only the last is carried out. */
export function latest(work) {
  let running = false, next = null;
  return async function call(...values) {
    if (running) { next = values; return; }
    running = true;
    try { await work(...values); } finally {
      running = false;
      if (next) { const again = next; next = null; call(...again); }
    }
  };
}

/** A function that runs once no call has come for `milliseconds`. */
export function debounce(work, milliseconds = 150) {
  let timer;
  return (...values) => { clearTimeout(timer); timer = setTimeout(() => work(...values), milliseconds); };
}

/** A chart by Observable Plot, redrawn when its box changes size. `make(width)` returns Plot's options; `label` describes
 *  the chart for screen readers. Returns a node; `node.draw(make)` draws new content. */
export function chart(make, {label}) {
  const node = el("div", {class: "chart", role: "img", "aria-label": label});
  let current = make, drawnWidth = 0;
  const draw = () => {
    const width = Math.floor(node.clientWidth);
    if (!width || !current) return;
    drawnWidth = width;
    node.replaceChildren(plot({width, ...current(width)}));
  };
  node.draw = (next) => { current = next; draw(); };
  new ResizeObserver(() => { if (Math.abs(node.clientWidth - drawnWidth) > 1) draw(); }).observe(node);
  return node;
}

/** Plot.plot, without the style elements that the content security policy forbids (style.css has those rules). */
export function plot(options) {
  const figure = window.Plot.plot({className: "plot", ...options});
  const styles = [...figure.querySelectorAll("style")];
  for (const style of styles) style.remove(); // before the figure is in the page, so that nothing is blocked
  return figure;
}

/** Offer a file as a download. */
export function download(name, blob) {
  const address = URL.createObjectURL(blob);
  const link = el("a", {href: address, download: name});
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(address), 60000);
}

/** A table: `columns` are texts, `rows` lists of strings, numbers or nodes; columns of numbers are right-aligned. */
export function table(columns, rows, {caption} = {}) {
  const numeric = columns.map((_, i) => rows.length > 0 && rows.every((row) => typeof row[i] === "number"));
  const cell = (tag, value, i) => el(tag, {class: numeric[i] && "number", scope: tag === "th" && "col"},
    value instanceof Node ? value : typeof value === "number" ? format(value) : String(value ?? ""));
  return el("div", {class: "scroll", tabindex: "0", role: "region", "aria-label": caption ?? "table"},
    el("table", {}, caption && el("caption", {}, caption),
      el("thead", {}, el("tr", {}, ...columns.map((text, i) => cell("th", text, i)))),
      el("tbody", {}, ...rows.map((row) => el("tr", {}, ...row.map((value, i) => cell("td", value, i)))))));
}

/** A number for readers: thousands separators, few digits. */
export function format(value, digits = 3) {
  if (!Number.isFinite(value)) return String(value);
  if (Number.isInteger(value) && Math.abs(value) < 1e15) return value.toLocaleString("en-GB");
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e6)) return value.toExponential(digits - 1);
  return Number(value.toPrecision(digits)).toLocaleString("en-GB", {maximumSignificantDigits: digits});
}

/** Colours of lines and areas, from the current theme. */
export const COLOURS = ["var(--series-1)", "var(--series-2)", "var(--series-3)", "var(--series-4)", "var(--series-5)"];

/** A block of the page with a title. */
export function card(title, ...children) {
  return el("section", {class: "card"}, title && el("h3", {}, title), ...children);
}

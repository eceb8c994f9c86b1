// Draw half a digit; a hypernetwork and a kernel complete it while you draw.
import {Pad} from "./draw/pad.js";
import {greys, heat, legend} from "./draw/picture.js";

const PARTS = [["top", "Top half"], ["bottom", "Bottom half"], ["left", "Left half"], ["right", "Right half"], ["all", "All"]];
const POLL = 600; // milliseconds

export async function mount(section, tools) {
  const {el, api, slider, choice, button, status, latest, card, format} = tools;
  const pad = new Pad({onChange: () => update()});
  const part = choice({label: "What the models see", options: PARTS, value: "top", onChange: () => { pad.part = part.value; update(); }});
  const factor = slider({
    label: "Resolution", values: [1, 2, 3, 4, 6, 8], value: 4,
    format: (times) => `${8 * times} × ${8 * times}`, hint: "Both answers are functions of the plane, so they can be sampled at any resolution.",
    onInput: () => update(),
  });
  const hyper = picture("Picture of the generated network");
  const kernel = picture("Posterior mean of the kernel");
  const spread = picture("Posterior deviation of the kernel at each point");
  const training = status(), messages = {network: status(), kernel: status(), download: status()};
  const numbers = el("p", {class: "hint", "aria-live": "polite"});
  let trained = false, example = 0;

  const downloads = el("div", {class: "row", role: "group", "aria-label": "Download the generated network"},
    el("span", {class: "hint"}, "Download the network:"),
    button("safetensors", () => save("safetensors")), button("ONNX", () => save("onnx")));

  function picture(label) {
    return el("canvas", {class: "picture", width: 8, height: 8, role: "img", "aria-label": label});
  }

  const drawing = () => ({image: pad.values, part: part.value, factor: factor.value});

  async function ask(kind, asked, show) {
    try {
      show(await api(`/api/draw/${kind}`, asked));
      messages[kind].done();
    } catch (error) { messages[kind].error(error); }
  }

  const update = latest(async () => {
    section.dataset.state = "asking";
    if (pad.empty) {
      for (const canvas of [hyper, kernel, spread]) canvas.classList.add("blank");
      for (const message of [messages.network, messages.kernel]) message.done();
      numbers.textContent = "";
      section.dataset.state = "empty";
      return;
    }
    const asked = drawing();
    if (trained) await ask("network", asked, (answer) => greys(hyper, answer.image, answer.side));
    await ask("kernel", asked, (answer) => {
      greys(kernel, answer.image, answer.side);
      heat(spread, answer.deviation, answer.deviation_side);
      numbers.textContent = answer.unseen === null
        ? `Deviation at the pixels: ${format(answer.seen, 2)} on average.`
        : `Deviation at the pixels: ${format(answer.seen, 2)} on average in the visible part, ${format(answer.unseen, 2)} in the hidden part.`;
    });
    section.dataset.state = "answered";
  });

  async function save(kind) {
    if (!trained) { messages.download.error(new Error("The hypernetwork is still being trained.")); return; }
    if (pad.empty) { messages.download.error(new Error("The drawing is empty.")); return; }
    const {image, part} = drawing();
    const blob = await messages.download.during("Writing the file",
      () => api("/api/draw/download", {image, part, format: kind}, {blob: true}));
    if (blob) tools.download(`digit.${kind}`, blob);
  }

  async function show() {
    await messages.kernel.during("Fetching a digit", async () => {
      const digit = await api(`/api/draw/example?number=${example}`);
      example += 1;
      pad.values = digit.image;
    });
    await update();
  }

  async function follow() {
    let now;
    try { now = await api("/api/draw/start", {}); } catch (error) { training.error(error); return; }
    while (now.state === "training") {
      const error = now.error === null ? "" : `; its error on held-out digits is ${format(now.error, 2)} of their variance`;
      training.progress(now.share, `Training the hypernetwork (first use only): ${Math.round(100 * now.share)} %${error}. The kernel needs no training.`);
      await new Promise((done) => setTimeout(done, POLL));
      try { now = await api("/api/draw/state"); } catch (error) { training.error(error); return; }
    }
    if (now.state !== "ready") { training.error(new Error(now.text ?? "the network was not trained")); return; }
    training.done();
    trained = true;
    section.dataset.trained = "true";
    update();
  }

  section.append(
    el("p", {}, "Draw a digit, or half of one. A hypernetwork reads the visible part and writes the 561 weights of a small network, ",
      "which gives the brightness at every point. A kernel, the limit of infinitely wide hypernetworks, does the same without training."),
    training.node,
    el("div", {class: "columns draw"},
      card("Your drawing", pad.node,
        el("div", {class: "row"}, button("Show me a digit", show, {kind: "main"}), button("Clear", () => pad.clear()), pad.eraser),
        part.node, factor.node),
      el("div", {class: "stack"},
        el("div", {class: "pictures"},
          card("Hypernetwork", hyper, messages.network.node, downloads, messages.download.node),
          card("Kernel", kernel, messages.kernel.node),
          card("Kernel: deviation", spread, legend(tools), numbers)),
        card("How to read the deviation",
          el("p", {}, "It is the posterior standard deviation of the Gaussian process, given 20 similar digits at every pixel and your drawing ",
            "in its visible part. It depends on where values were observed and on how similar the visible parts are, never on the values ",
            "themselves. So it grows away from the visible part and between pixels, and is larger for a drawing unlike any digit. ",
            "It does not show that some digits can be completed in two ways."),
          el("p", {class: "hint"}, "The digits are scikit-learn's, 8 by 8 pixels. “Show me a digit” shows held-out digits, which neither model was trained on."),
        ))));
  pad.part = part.value;
  follow();
  await show();
}

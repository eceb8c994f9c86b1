// Draw half a digit; a hypernetwork and a kernel complete it while you draw.
import {Pad} from "./draw_pad.js";
import {greys, heat, legend} from "./draw_picture.js";

const PARTS = [["top", "Top half"], ["bottom", "Bottom half"], ["left", "Left half"], ["right", "Right half"], ["all", "All"]];
const POLL = 600; // milliseconds

export async function mount(section, tools) {
  const {el, api, slider, choice, button, status, latest, card, format} = tools;
  const pad = new Pad({onChange: () => update()});
  const part = choice({label: "What the models see", options: PARTS, value: "top", onChange: () => { pad.part = part.value; update(); }});
  const factor = slider({
    label: "Resolution", values: [1, 2, 3, 4, 6, 8], value: 4,
    format: (times) => `${8 * times} × ${8 * times}`, hint: "Both answers are functions of the plane: sample them as finely as you like.",
    onInput: () => update(),
  });
  const hyper = picture("What the generated network draws");
  const kernel = picture("What the kernel expects: the posterior mean");
  const spread = picture("Posterior deviation of the kernel at each place");
  const training = status(), said = {network: status(), kernel: status(), download: status()};
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
      said[kind].done();
    } catch (error) { said[kind].error(error); }
  }

  const update = latest(async () => {
    section.dataset.state = "asking";
    if (pad.empty) {
      for (const canvas of [hyper, kernel, spread]) canvas.classList.add("blank");
      for (const one of [said.network, said.kernel]) one.done();
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
        : `Deviation at the pixels: ${format(answer.seen, 2)} on average where the models see the drawing, ${format(answer.unseen, 2)} where they do not.`;
    });
    section.dataset.state = "answered";
  });

  async function save(kind) {
    if (!trained) { said.download.error(new Error("The hypernetwork is still being trained.")); return; }
    if (pad.empty) { said.download.error(new Error("Nothing is drawn yet.")); return; }
    const {image, part} = drawing();
    const blob = await said.download.during("Writing the file",
      () => api("/api/draw/download", {image, part, format: kind}, {blob: true}));
    if (blob) tools.download(`digit.${kind}`, blob);
  }

  async function show() {
    await said.kernel.during("Fetching a digit", async () => {
      const found = await api(`/api/draw/example?number=${example}`);
      example += 1;
      pad.values = found.image;
    });
    await update();
  }

  async function follow() {
    let now;
    try { now = await api("/api/draw/start", {}); } catch (error) { training.error(error); return; }
    while (now.state === "training") {
      const error = now.error === null ? "" : `; on digits it has not seen, its error is ${format(now.error, 2)} of their variance`;
      training.progress(now.share, `Training the hypernetwork, once: ${Math.round(100 * now.share)} %${error}. The kernel answers already.`);
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
    el("p", {}, "Draw a digit, or half of one. A hypernetwork reads the part that it sees and writes the 561 weights of a small ",
      "network that draws all of it, point by point. A kernel, the limit of infinitely wide hypernetworks, does the same without training."),
    training.node,
    el("div", {class: "columns draw"},
      card("Your drawing", pad.node,
        el("div", {class: "row"}, button("Show me a digit", show, {kind: "main"}), button("Clear", () => pad.clear()), pad.eraser),
        part.node, factor.node),
      el("div", {class: "stack"},
        el("div", {class: "pictures"},
          card("Hypernetwork", hyper, said.network.node, downloads, said.download.node),
          card("Kernel", kernel, said.kernel.node),
          card("Kernel: deviation", spread, legend(tools), numbers)),
        card("How to read the deviation",
          el("p", {}, "It is the standard deviation of the Gaussian process that is left when it was told 20 similar digits, at every pixel, and ",
            "your drawing, where it is seen. It depends on where values were observed and on how alike the seen parts are, never on the values ",
            "themselves. So it grows away from what you drew, and between pixels, and it is larger for a drawing unlike any digit; ",
            "it cannot know that one digit can be finished in two ways."),
          el("p", {class: "hint"}, "The digits are scikit-learn's, 8 by 8 pixels. Those that “Show me a digit” shows were used by neither model."),
        ))));
  pad.part = part.value;
  follow();
  await show();
}

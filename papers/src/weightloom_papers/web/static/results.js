// Results: the store, read through the server. results_view.js shows it, here and in the exported file.
import {show} from "./results_view.js";

/** Load the tab's style sheet before anything is shown. */
function style(el) {
  const link = el("link", {rel: "stylesheet", href: new URL("results.css", import.meta.url).href});
  const loaded = new Promise((done) => { link.addEventListener("load", done); link.addEventListener("error", done); });
  document.head.append(link);
  return loaded;
}

export async function mount(section, tools) {
  const {api, el} = tools;
  await style(el);
  await show(section, tools, {
    runs: () => api("/api/results/runs"),
    scales: () => api("/api/results/scales"),
    run: (row) => api(`/api/results/run/${encodeURIComponent(row.experiment)}/${row.key}`),
    figures: (name, scale) => api(`/api/results/figures/${encodeURIComponent(name)}${scale ? `?scale=${scale}` : ""}`),
    async exported(progress) {
      let state = await api("/api/results/export", {});
      while (!state.ready) {
        if (state.error) throw new Error(state.error);
        progress(state.fraction, state.text);
        await new Promise((done) => setTimeout(done, 400));
        state = await api("/api/results/export");
      }
      return api("/api/results/export/file", undefined, {blob: true});
    },
  });
}

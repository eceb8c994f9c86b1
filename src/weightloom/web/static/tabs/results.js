// Results: the store through the server. What is shown is in results_view.js, which the exported file has as well.
import {show} from "./results_view.js";

export async function mount(section, tools) {
  const {api} = tools;
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

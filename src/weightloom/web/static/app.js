// The tabs: one panel each, filled when it is first shown; the address's hash says which (so links and "back" work).
import * as helpers from "./tools.js";

const TABS = [
  ["draw", "Draw"],
  ["kernels", "Kernels"],
  ["sizes", "Which model?"],
  ["constructions", "Pieces and constructions"],
  ["compare", "Same network?"],
  ["results", "Results"],
];
const {el, api} = helpers;
const tools = {...helpers, Plot: window.Plot, d3: window.d3};
const list = document.getElementById("tabs");
const main = document.getElementById("main");
const tabs = new Map();

for (const [name, title] of TABS) {
  const tab = el("a", {role: "tab", id: `tab-${name}`, href: `#${name}`, "aria-controls": `panel-${name}`}, title);
  const panel = el("section", {role: "tabpanel", id: `panel-${name}`, "aria-labelledby": tab.id, hidden: true},
    el("h2", {}, title));
  list.append(tab);
  main.append(panel);
  tabs.set(name, {tab, panel, mounted: false});
}

function shown() {
  const wanted = location.hash.slice(1).split("/")[0];
  return tabs.has(wanted) ? wanted : TABS[0][0];
}

async function show() {
  const name = shown();
  for (const [other, {tab, panel}] of tabs) {
    const selected = other === name;
    tab.setAttribute("aria-selected", String(selected));
    tab.tabIndex = selected ? 0 : -1;
    panel.hidden = !selected;
  }
  const {tab, panel, mounted} = tabs.get(name);
  document.title = `${tab.textContent} · weightloom`;
  // Not scrollIntoView: Chromium would then start the next press of Tab from there.
  list.scrollLeft = tab.offsetLeft - (list.clientWidth - tab.offsetWidth) / 2;
  if (mounted) return;
  tabs.get(name).mounted = true;
  const box = el("div", {class: "tab"});
  panel.append(box);
  try {
    const module = await import(`./tabs/${name}.js`);
    await module.mount(box, tools);
    panel.dataset.ready = "true";
  } catch (error) {
    console.error(error);
    box.append(el("div", {class: "status error", role: "alert"}, `This part of the page did not load: ${error.message}`));
  }
}

list.addEventListener("keydown", (event) => {
  const names = TABS.map(([name]) => name);
  const at = names.findIndex((name) => tabs.get(name).tab === document.activeElement);
  const to = {ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: names.length - 1}[event.key];
  if (at < 0 || to === undefined) {
    if (event.key === " " && at >= 0) { event.preventDefault(); location.hash = names[at]; }
    return;
  }
  event.preventDefault();
  const name = names[(to + names.length) % names.length];
  location.hash = name;
  show(); // now: the event comes later, and the next key may come before it
  tabs.get(name).tab.focus();
});

document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault(); // the hash is the tabs' own
  main.focus();
});
window.addEventListener("hashchange", show);
api("/api/about").then(({version}) => {
  document.getElementById("version").textContent = `weightloom ${version}.`;
}, () => {});
show();

// Tabs: one panel each, filled when it is first shown. The hash of the address selects one, so links and "back" work.
import * as helpers from "./tools.js";

const {el, api} = helpers;
const tools = {...helpers, Plot: window.Plot, d3: window.d3};
const list = document.getElementById("tabs");
const main = document.getElementById("main");
const tabs = new Map();

// Installed packages may add tabs, so the server lists them.
const about = await api("/api/about").catch((error) => {
  main.append(el("div", {class: "status error", role: "alert"}, `The page cannot start: ${error.message}`));
  throw error;
});
document.getElementById("version").textContent = `weightloom ${about.version}.`;
for (const {name, title, script} of about.tabs) {
  const tab = el("a", {role: "tab", id: `tab-${name}`, href: `#${name}`, "aria-controls": `panel-${name}`}, title);
  const panel = el("section", {role: "tabpanel", id: `panel-${name}`, "aria-labelledby": tab.id, hidden: true},
    el("h2", {}, title));
  list.append(tab);
  main.append(panel);
  tabs.set(name, {tab, panel, script, mounted: false});
}

function selectedTab() {
  const wanted = location.hash.slice(1).split("/")[0];
  return tabs.has(wanted) ? wanted : about.tabs[0].name;
}

async function show() {
  const name = selectedTab();
  for (const [other, {tab, panel}] of tabs) {
    const selected = other === name;
    tab.setAttribute("aria-selected", String(selected));
    tab.tabIndex = selected ? 0 : -1;
    panel.hidden = !selected;
  }
  const {tab, panel, script, mounted} = tabs.get(name);
  document.title = `${tab.textContent} · weightloom`;
  // Not scrollIntoView: Chromium would then start the next press of Tab from there.
  list.scrollLeft = tab.offsetLeft - (list.clientWidth - tab.offsetWidth) / 2;
  if (mounted) return;
  tabs.get(name).mounted = true;
  const box = el("div", {class: "tab"});
  panel.append(box);
  try {
    const module = await import(script);
    await module.mount(box, tools);
    panel.dataset.ready = "true";
  } catch (error) {
    console.error(error);
    box.append(el("div", {class: "status error", role: "alert"}, `This tab did not load: ${error.message}`));
  }
}

list.addEventListener("keydown", (event) => {
  const names = [...tabs.keys()];
  const at = names.findIndex((name) => tabs.get(name).tab === document.activeElement);
  const to = {ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: names.length - 1}[event.key];
  if (at < 0 || to === undefined) {
    if (event.key === " " && at >= 0) { event.preventDefault(); location.hash = names[at]; }
    return;
  }
  event.preventDefault();
  const name = names[(to + names.length) % names.length];
  location.hash = name;
  show(); // at once: the next key may arrive before the hashchange event
  tabs.get(name).tab.focus();
});

document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault(); // the hash belongs to the tabs
  main.focus();
});
window.addEventListener("hashchange", show);
show();

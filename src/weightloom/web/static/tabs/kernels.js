export async function mount(section, tools) {
  section.append(tools.el("p", {class: "muted"}, "Nothing here yet."));
}

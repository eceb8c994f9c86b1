"""Same network? in a real browser."""

from pathlib import Path

import torch
from safetensors.torch import load

from tests.cli.test_inspect import mlp, save
from tests.web.browser.visit import fits, visit


def open_tab(page):
    page.goto("/#compare")
    page.wait_for_selector("#panel-compare[data-ready=true]")
    return page.locator("#panel-compare")


def test_an_example_with_clones(page):
    panel = open_tab(page)
    panel.get_by_label("No file at hand?").select_option("cloned")
    panel.get_by_role("button", name="Try this example").click()
    panel.locator(".verdict:text-is('The same function')").wait_for()
    assert panel.locator("svg.matrix").count() == 2
    assert panel.locator("svg.matrix .unit").count() == 8 + 6
    panel.get_by_text("2 units can be removed without changing any output").wait_for()
    with page.expect_download() as caught:
        panel.get_by_role("button", name="Download it without them").click()
    assert caught.value.suggested_filename == "example-b-reduced.safetensors"
    assert load(Path(caught.value.path()).read_bytes())["0.weight"].shape == (8, 3)


def test_own_files_good_and_bad(chrome, server, tmp_path):
    good = save(mlp(), tmp_path / "good.safetensors")
    other = save(mlp(seed=1), tmp_path / "other.safetensors")
    torch.save(mlp().state_dict(), tmp_path / "old.pt")
    with visit(chrome, server, width=390, height=844, refused=True) as page:
        panel = open_tab(page)
        first, second = panel.locator("input[type=file]").all()
        first.set_input_files(tmp_path / "old.pt")
        panel.get_by_text("'old.pt' was refused: it is a pickle").wait_for()
        first.set_input_files(good)
        panel.get_by_role("heading", name="good.safetensors").wait_for()
        assert panel.locator(".verdict").count() == 0  # nothing to compare it with
        second.set_input_files(other)
        panel.get_by_text("Different functions").wait_for()
        panel.get_by_role("button", name="Remove second network").click()
        panel.get_by_text("Different functions").wait_for(state="detached")
        panel.get_by_role("heading", name="good.safetensors").wait_for()
        assert fits(page)


def test_two_files_dropped_at_once(page, tmp_path):
    panel = open_tab(page)
    net = mlp()
    content = [Path(save(net, tmp_path / f"{n}.safetensors")).read_bytes() for n in "ab"]
    page.evaluate(
        """contents => {
            const data = new DataTransfer();
            contents.forEach((bytes, i) =>
                data.items.add(new File([new Uint8Array(bytes)], `dropped-${i}.safetensors`)));
            const zone = document.querySelector("#panel-compare .drop");
            zone.dispatchEvent(new DragEvent("drop", {dataTransfer: data, bubbles: true,
                cancelable: true}));
        }""",
        [list(data) for data in content],
    )
    panel.locator(".verdict:text-is('The same function')").wait_for()
    panel.get_by_text("dropped-1.safetensors").first.wait_for()

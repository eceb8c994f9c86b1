"""Draw, through the server."""

import time

import pytest
import torch

from weightloom.demo.completion import kernel
from weightloom.demo.completion.kernel import digits, read_image
from weightloom.web.tabs import draw


def drawing(number=0):
    return digits().held_out[number].tolist()


def until_trained(client):
    state = client.post("/api/draw/start", json={}).json()
    while state["state"] == "training":
        time.sleep(0.1)
        state = client.get("/api/draw/state").json()
    return state


def test_the_page_trains_once_and_draws(client):
    asked = {"image": drawing(), "part": "top", "factor": 2}
    kernel = client.post("/api/draw/kernel", json=asked).json()  # before the network is there
    assert len(kernel["image"]) == kernel["side"] ** 2 == 256
    assert len(kernel["deviation"]) == kernel["deviation_side"] ** 2 == 256
    assert kernel["unseen"] > kernel["seen"] > 0
    state = until_trained(client)
    assert (state["state"], state["share"]) == ("ready", 1.0)
    drawn = client.post("/api/draw/network", json=asked).json()
    assert len(drawn["image"]) == 256
    assert all(0 <= value <= 1 for value in drawn["image"])
    assert client.post("/api/draw/start", json={}).json()["state"] == "ready"


def test_downloads_have_their_names(client):
    until_trained(client)
    asked = {"image": drawing(), "part": "all", "format": "safetensors"}
    answer = client.post("/api/draw/download", json=asked)
    assert answer.headers["content-disposition"] == 'attachment; filename="digit.safetensors"'
    assert answer.headers["content-type"] == "application/octet-stream"
    assert client.post("/api/draw/download", json=asked | {"format": "exe"}).status_code == 422


def test_bad_drawings_are_explained(client):
    blank = client.post("/api/draw/kernel", json={"image": [0] * 64, "part": "top"})
    assert blank.status_code == 422
    assert "draw there first" in blank.json()["error"]
    fine = client.post("/api/draw/kernel", json={"image": [1] * 64, "part": "all", "factor": 99})
    assert fine.status_code == 422
    assert fine.json()["error"].startswith("factor: ")


def test_examples_were_held_out(client):
    first, again = (client.get("/api/draw/example", params={"number": n}).json() for n in (0, 360))
    assert first == again
    image = torch.tensor(first["image"])
    assert not (digits().train == image).all(1).any()


@pytest.mark.parametrize(("factor", "completions"), [(1, 1), (2, 2), (4, 2)])
def test_the_kernel_is_asked_as_rarely_as_it_can_be(factor, completions, monkeypatch):
    """Once at factor 1; more only where means and deviations are shown at other points."""
    calls, complete = [], kernel.complete

    def counted(*asked):
        calls.append(asked)
        return complete(*asked)

    monkeypatch.setattr(kernel, "complete", counted)
    answer = draw._kernel(drawing(3), "top", factor)
    assert len(calls) == completions
    seen, _ = read_image(drawing(3), "top")
    image = kernel.mean(seen, "top", 8 * factor)
    assert answer["image"] == pytest.approx(image.tolist(), abs=1e-4)
    deviations = complete(seen, "top", 8)[1]
    assert answer["seen"] == pytest.approx(deviations[:32].mean().item(), rel=1e-9)

"""Same network?: verdicts, what was matched, and files that mean no good."""

from __future__ import annotations

import io
import json
import struct
from pathlib import Path

import pytest
import torch
from safetensors.torch import load, save

from tests.cli.test_inspect import disguised, mlp
from weightloom.bounds import report
from weightloom.symmetry import equivalent
from weightloom.symmetry.files.architecture import infer
from weightloom.web.tabs.compare_answer import answer_for, bounds_of, example, reduced_file


def content(net, **metadata):
    return save({k: v.contiguous() for k, v in net.state_dict().items()}, metadata or None)


def put(client, data):
    return client.post("/api/compare/upload", content=data).json()["key"]


def ask(client, *files, **options):
    given = [{"key": put(client, data), "name": name} for name, data in files]
    return client.post("/api/compare/inspect", json={"files": given, **options})


def written(tmp_path, *contents):
    files = []
    for number, data in enumerate(contents):
        path = tmp_path / f"upload-{number}"
        path.write_bytes(data)
        files.append((path, f"net-{number}.safetensors"))
    return files


# -- verdicts ------------------------------------------------------------------------------------


def test_a_disguise_is_seen_through(tmp_path):
    first, second = example("disguised")
    answer = answer_for(written(tmp_path, first, second), None)
    assert answer["equivalence"]["same"] is True
    # What was matched brings the second network's weights to the first's.
    a, b = load(first), load(second)
    for layer, previous in (("0", None), ("2", "0")):
        (row,) = (match for match in answer["matched"] if match["layer"] == layer)
        order, factor = torch.tensor(row["permutation"]), torch.tensor(row["factor"]).double()
        weight = b[f"{layer}.weight"][order] * factor[:, None]
        if previous is not None:
            (into,) = (match for match in answer["matched"] if match["layer"] == previous)
            weight = weight[:, into["permutation"]] / torch.tensor(into["factor"]).double()
        assert torch.allclose(weight, a[f"{layer}.weight"], rtol=1e-4)  # factors have 6 digits
        assert row["moved"] == int((order != torch.arange(len(order))).sum())
    mixed = answer["mixed"]
    assert max(mixed["given"]) > 0.01  # the line between them leaves the function ...
    assert max(mixed["aligned"]) < 1e-20  # ... and does not once units are aligned
    assert mixed["distance_after"] < 1e-12 < mixed["distance_before"]


def test_clones_are_named_and_can_be_left_out(tmp_path):
    files = written(tmp_path, *example("cloned"))
    answer = answer_for(files, None)
    assert answer["equivalence"]["same"]
    assert answer["equivalence"]["reduced"]
    assert [len(network["removed"]) for network in answer["networks"]] == [0, 2]
    assert any("no layer reads it" in text for text in answer["networks"][1]["removed"])
    small = reduced_file(files[1], None)
    before, after = infer(load(files[1][0].read_bytes())).module, infer(load(small)).module
    assert after[0].out_features == 8 < before[0].out_features == 10
    assert equivalent(before, after)
    probe = torch.randn(9, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    assert torch.allclose(before(probe), after(probe), atol=1e-12)


def test_a_small_change_is_a_difference(tmp_path):
    answer = answer_for(written(tmp_path, *example("changed")), None)
    assert answer["equivalence"]["same"] is False
    assert "has no partner" in answer["equivalence"]["mismatch"]
    assert answer["equivalence"]["answer"] == "different"
    assert answer["equivalence"]["condition"] is None  # the examples say their activation
    shown = answer["equivalence"]["probe"]
    point = torch.tensor([shown["input"]], dtype=torch.float64)
    for file, output in zip(example("changed"), shown["outputs"], strict=True):
        again = infer(load(file)).module(point)[0].tolist()
        assert again == pytest.approx(output, rel=1e-4, abs=1e-4)  # six digits of the input
    assert shown["outputs"][0] != shown["outputs"][1]
    assert answer["mixed"]["method"] in ("weights", "normalized weights")
    assert max(answer["mixed"]["aligned"]) < 0.01 * max(answer["mixed"]["given"])
    json.dumps(answer, allow_nan=False)


def test_other_architectures_are_compared_too(tmp_path):
    files = written(tmp_path, content(mlp()), content(torch.nn.Sequential(torch.nn.Linear(3, 2))))
    answer = answer_for(files, None)
    assert "has shapes (8, 3) and (2, 3)" in answer["equivalence"]["mismatch"]
    assert answer["mixed"] is None


def test_one_file_and_its_bounds(tmp_path):
    net = mlp()
    (file,) = written(tmp_path, content(net))
    answer = answer_for([file], None)
    (network,) = answer["networks"]
    assert answer["equivalence"] is None
    assert "matched" not in answer
    assert network["name"] == "net-0.safetensors"
    assert network["parameters"] == sum(p.numel() for p in net.parameters())
    assert network["activation"] == "relu"
    assert network["normality"]["normal"]
    about = bounds_of(file, None)
    assert about["reason"] is None
    assert about["bounds"]["lipschitz"]["2"]["upper"] == float(report(net).lipschitz["2"].upper)


def test_the_activation_matters(tmp_path):
    net = mlp(torch.nn.Tanh)
    files = written(tmp_path, content(net), content(disguised(net)))
    assert answer_for(files, "tanh")["equivalence"]["same"]
    noted = written(tmp_path, content(net, activation="tanh"))
    assert answer_for(noted, None)["networks"][0]["activation"] == "tanh"


def test_convolutions_get_no_made_up_bounds(tmp_path):
    net = torch.nn.Sequential(
        torch.nn.Conv2d(1, 3, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(48, 2)
    )
    (file,) = written(tmp_path, content(net))
    assert answer_for([file], None)["networks"][0]["parameters"] == 30 + 98
    assert "strides, padding and pooling" in bounds_of(file, None)["reason"]


# -- through the server, hostile files included --------------------------------------------------


def test_through_the_server(client):
    options = client.get("/api/compare/options").json()
    assert "tanh" in options["activations"]
    assert options["limit"] == 200 * 10**6
    kind = options["examples"][1][0]
    files = [client.get(f"/api/compare/example/{kind}/{n}").content for n in (1, 2)]
    keys = [put(client, data) for data in files]
    given = [{"key": key, "name": "x\x1b\n.safetensors"} for key in keys]
    answer = client.post("/api/compare/inspect", json={"files": given}).json()
    assert answer["networks"][0]["name"] == "x.safetensors"
    assert answer["equivalence"]["same"]
    small = client.get(f"/api/compare/reduced/{keys[1]}", params={"name": "x.safetensors"})
    assert small.headers["content-disposition"].startswith("attachment")
    assert load(small.content)["0.weight"].shape == (8, 3)
    unknown = client.get("/api/compare/example/none/1")
    assert unknown.status_code == 422
    assert "there is no example 'none'" in unknown.json()["error"]


class Bomb:
    def __reduce__(self):
        return (Path.touch, (Path("exploded"),))


def pickled(zipped):
    file = io.BytesIO()
    torch.save({"0.weight": Bomb()}, file, _use_new_zipfile_serialization=zipped)
    return file.getvalue()


def with_nan():
    net = mlp()
    with torch.no_grad():
        net[2].bias[3] = float("nan")
    return content(net)


def whole_numbers():
    return save({"0.weight": torch.ones(2, 3, dtype=torch.int64)})


def beyond():
    header = json.dumps(
        {"0.weight": {"dtype": "F32", "shape": [2**40, 2**40], "data_offsets": [0, 4]}}
    ).encode()
    return struct.pack("<Q", len(header)) + header + b"1234"


@pytest.mark.parametrize(
    ("name", "contents", "message"),
    [
        ("a.safetensors", lambda: pickled(True), "was refused: it is a pickle"),
        ("a.safetensors", lambda: pickled(False), "was refused: it is a pickle"),
        ("a.pt", lambda: content(mlp()), "was refused: it is a pickle"),
        ("a.safetensors", lambda: b"", "cannot be read as safetensors: it has 0 bytes"),
        ("a.safetensors", lambda: content(mlp())[:-3], "damaged or incomplete"),
        ("a.safetensors", lambda: struct.pack("<Q", 2**62) + b"{}" * 9, "announces a header of"),
        ("a.safetensors", beyond, "cannot be read as safetensors"),
        ("a.safetensors", with_nan, "tensor '2.bias' holds NaN or infinity"),
        ("a.safetensors", whole_numbers, "is torch.int64; wanted weights in float16 or wider"),
        ("../../\x00etc/passwd\n", lambda: b"root:x:0", "cannot be read as safetensors"),
        ("a.safetensors", lambda: save({}), "empty"),
    ],
)
def test_hostile_files(client, name, contents, message):
    answer = ask(client, (name, contents()))
    assert answer.status_code == 422
    text = answer.json()["error"]
    assert message in text
    assert "/tmp" not in text  # the reader's name for the file, not ours
    assert text.isprintable()
    assert not Path("exploded").exists()


def test_the_bomb_works(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.load(io.BytesIO(pickled(True)), weights_only=False)
    assert Path("exploded").exists()


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("0" * 32, "that file is not here any more"),
        ("../../../etc/passwd", "String should match pattern"),
        ("/etc/passwd", "String should match pattern"),
    ],
)
def test_keys_are_no_paths(client, key, message):
    answer = client.post(
        "/api/compare/inspect", json={"files": [{"key": key, "name": "a.safetensors"}]}
    )
    assert answer.status_code == 422
    assert message in answer.json()["error"]


def test_wrong_questions(client):
    for files in ([], [{"key": "0" * 32, "name": "a"}] * 3):
        assert client.post("/api/compare/inspect", json={"files": files}).status_code == 422
    answer = ask(client, ("a.safetensors", content(mlp())), activation="rm -rf")
    assert answer.status_code == 422
    assert "activation 'rm -rf' is not known" in answer.json()["error"]


def test_files_that_are_too_large(page_settings):
    from dataclasses import replace

    from starlette.testclient import TestClient

    from weightloom.web import create_app

    # Not entered: no worker is started, and none is needed to say no.
    small = TestClient(
        create_app(replace(page_settings, upload_limit=1000)), base_url="http://localhost"
    )
    answer = small.post("/api/compare/upload", content=b"x" * 1001)
    assert answer.status_code == 413
    assert "larger than the limit of 0.001 MB" in answer.json()["error"]
    assert small.post("/api/compare/upload", content=b"x" * 1000).status_code == 200

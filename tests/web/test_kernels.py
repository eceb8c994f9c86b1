"""Kernels, through the server."""

import pytest


def test_the_page_answers(client):
    exact = client.post("/api/kernels/exact", json={"activation_g": "tanh"}).json()
    assert len(exact["angle"]) == len(exact["kernel"]) == 91
    sampled = client.post("/api/kernels/sampled", json={"widths": [4, 8], "draws": 3}).json()
    assert [row["width"] for row in sampled["widths"]] == [4, 8]


@pytest.mark.parametrize(
    ("path", "asked", "text"),
    [
        ("exact", {"depth_f": 99}, "depth_f"),
        ("exact", {"activation_f": "__import__('os')"}, "activation_f"),
        ("exact", {"angle": 1e9}, "angle"),
        ("sampled", {"widths": [10**9]}, "widths"),
        ("sampled", {"widths": []}, "widths"),
        ("sampled", {"widths": [4], "draws": 10**6}, "draws"),
        ("orders", {"depth": 1, "widths": [4096]}, "at most 256"),
        ("sampled", {"widths": [256], "draws": 40, "depth_f": 5, "depth_g": 5}, "narrower"),
    ],
)
def test_what_is_too_large_is_refused(client, path, asked, text):
    answer = client.post(f"/api/kernels/{path}", json=asked)
    assert answer.status_code == 422
    assert text in answer.json()["error"]

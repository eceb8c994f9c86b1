"""How long does it take to decide whether two checkpoints are the same, in units of reading them?

attention: one attention layer and a disguised copy (heads permuted, queries, keys, values and
outputs mixed inside each), for widths up to 4096; the exponent between sizes says how the cost
grows. models: whole stacks of transformer blocks of up to 336 million parameters, read from two
safetensors files, and a disguised copy decided. CPU seconds of one thread, so that a busy machine
does not matter; ratios are to reading both files into memory.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from machine import describe
from safetensors.torch import load, save_file
from torch import Tensor, nn
from tqdm import tqdm

from weightloom.symmetry.group import apply_to_tensors, random_element, tensors_of
from weightloom.symmetry.matching.search import Match, match
from weightloom.symmetry.reading.reader import read
from weightloom.symmetry.spec import Spec

Tensors = dict[str, Tensor]
TOLERANCE = 32 * 2.0**-23


def cpu_seconds(call: Callable[[], Any], repeats: int) -> tuple[float, Any]:
    """Of the fastest of a few calls, and the result of the last."""
    times = []
    for _ in range(repeats):
        begin = time.process_time()
        result = call()
        times.append(time.process_time() - begin)
    return min(times), result


def decided(spec: Spec, a: Tensors, b: Tensors, repeats: int) -> tuple[float, Match]:
    """CPU seconds of the search, and its result."""
    return cpu_seconds(lambda: match(spec, a, b, TOLERANCE), repeats)


def read_both(paths: list[Path]) -> list[Tensors]:
    return [load(path.read_bytes()) for path in paths]


class Layer(nn.Module):
    """One attention layer between two linear ones."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.inner, self.head = nn.Linear(4, width), nn.Linear(width, 4)
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        x = self.inner(x)
        x, _ = self.attention(x, x, x, need_weights=False)
        return self.head(x)


def stack(width: int, layers: int, vocabulary: int) -> nn.Module:
    """Transformer blocks with an embedding, the shape of BERT."""
    blocks = [
        nn.TransformerEncoderLayer(width, width // 64, 4 * width, 0.0, "gelu", batch_first=True)
        for _ in range(layers)
    ]
    return nn.Sequential(nn.Embedding(vocabulary, width), *blocks, nn.Linear(width, 8)).eval()


def disguised(net: nn.Module) -> tuple[Spec, Tensors, Tensors]:
    """The symmetries, the tensors of a network, and those of a random copy."""
    spec, tensors = read(net), tensors_of(net)
    element = random_element(spec, torch.Generator().manual_seed(1))
    return spec, tensors, apply_to_tensors(element, spec, tensors)


def attention(options: argparse.Namespace) -> list[dict[str, Any]]:
    sizes = [128, 256] if options.quick else [512, 1024, 2048, 4096]
    rows: list[dict[str, Any]] = []
    print(f"\n{'width':>6} {'heads':>6} {'same':>9} {'growth':>7} {'changed':>9} {'growth':>7}")
    for width in tqdm(sizes, desc="attention", leave=False):
        heads = width // min(128, width // 4)
        spec, a, b = disguised(Layer(width, heads))
        ours, result = decided(spec, a, b, options.repeats)
        if not result.same:
            raise SystemExit(f"width {width}: a copy was not recognised: {result.mismatch}")
        c = {**b, "attention.in_proj_weight": b["attention.in_proj_weight"].clone()}
        c["attention.in_proj_weight"][3, 5] += 0.05 * width**-0.5
        changed, result = decided(spec, a, c, 1)
        if result.same:
            raise SystemExit(f"width {width}: a changed copy was called the same")
        row = {"width": width, "heads": heads, "same": ours, "changed": changed}
        growth = [f"{'':>7}"] * 2
        if rows:
            last, step = rows[-1], math.log(width / rows[-1]["width"])
            growth = [f"{math.log(row[k] / last[k]) / step:7.2f}" for k in ("same", "changed")]
        rows.append(row)
        tqdm.write(
            f"{width:6} {heads:6} {ours:8.3f}s {growth[0]} {changed:8.3f}s {growth[1]}"
        )  # fmt: skip
    return rows


def models(options: argparse.Namespace) -> list[dict[str, Any]]:
    sizes = [(128, 2, 100)] if options.quick else [(768, 6, 30_522), (768, 12, 30_522), LARGE]
    rows = []
    print(f"\n{'parameters':>12} {'reading':>9} {'deciding':>9} {'ratio':>6}")
    for width, layers, vocabulary in tqdm(sizes, desc="models", leave=False):
        spec, a, b = disguised(stack(width, layers, vocabulary))
        count = sum(t.numel() for t in a.values())
        with tempfile.TemporaryDirectory() as folder:
            paths = [Path(folder) / f"{name}.safetensors" for name in "ab"]
            for path, tensors in zip(paths, (a, b), strict=True):
                save_file(tensors, path)
            del a, b
            reading, (a, b) = cpu_seconds(partial(read_both, paths), options.repeats)
        ours, result = decided(spec, a, b, options.repeats)
        if not result.same:
            raise SystemExit(f"{count} parameters: a copy was not recognised: {result.mismatch}")
        rows.append({"parameters": count, "reading": reading, "deciding": ours})
        tqdm.write(f"{count:12,} {reading:8.2f}s {ours:8.2f}s {ours / reading:6.2f}")
    return rows


LARGE = (1024, 24, 32_000)  # BERT-large: 335 million


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parts = {"attention": attention, "models": models}
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"{', '.join(parts)}; all")
    parser.add_argument("--repeats", type=int, default=3, help="calls; the shortest counts")
    parser.add_argument("--quick", action="store_true", help="small sizes: does it run?")
    parser.add_argument("--json", type=Path, metavar="OUT", help="write every number to this file")
    options = parser.parse_args()
    unknown = [name for name in options.parts if name not in parts]
    if unknown:
        raise SystemExit(f"unknown part {unknown[0]!r}; there are {', '.join(parts)}")
    torch.set_num_threads(1)
    record: dict[str, Any] = {"machine": describe()}
    print(" ".join(f"{key}: {value};" for key, value in record["machine"].items()))
    with torch.no_grad():
        for name in options.parts or parts:
            record[name] = parts[name](options)
    if options.json:
        options.json.write_text(json.dumps(record, indent=1))


if __name__ == "__main__":
    main()

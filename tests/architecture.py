"""The declared architecture: which folder is on which level, and which siblings import each other.

A folder imports from lower levels freely, and from its own level only along EDGES. The picture in
docs/design.md is drawn from these tables (`docs/tools/map.py`).
"""

LEVELS = {
    "errors": 0, "files": 0, "tables": 0, "plotting": 0, "plugins": 0,
    "networks": 1, "linalg": 1,
    "hyper": 2, "kernels": 2, "symmetry": 2, "bounds": 2, "construct": 2, "data": 2,
    "training": 3,
    "demo": 4, "web": 4,
    "cli": 5,
}  # fmt: skip

# folder -> siblings that it imports; no cycles
EDGES = {
    "files": ["errors"],
    "plotting": ["errors"],
    "plugins": ["errors"],
    "kernels": ["hyper"],
    "construct": ["hyper"],
    "symmetry": ["bounds", "construct", "hyper"],
    "web": ["demo"],
}

CAPTIONS = {
    "errors": "the exceptions users meet",
    "files": "files that are there whole or not at all",
    "tables": "columns of text",
    "plotting": "one style for all figures",
    "plugins": "what other packages add",
    "networks": "what a network is: weights, layers, activations, readers",
    "linalg": "symmetric systems by structure, with certificates",
    "hyper": "HyperNetwork, heads, adapters, export",
    "kernels": "infinite width, regression",
    "symmetry": "same function? align, merge, reduce",
    "bounds": "how large, how smooth",
    "construct": "networks written by hand, certified",
    "data": "image sets, target functions",
    "training": "one loop for one model or a stack of them, checkpoints",
    "demo": "the main job: pictures, rivals, a report",
    "web": "the local page; computes nothing of its own",
    "cli": "one file per subcommand; further ones from installed packages",
}

PAPERS_LEVELS = {
    "papers": 0, "errors": 0,
    "lab": 1, "claims": 1,
    "modularity": 2, "infinite_width": 2, "functional_equivalence": 2,
    "depth_separation": 2, "deep_learning_theory": 2,
    "experiments": 3, "catalogue": 3, "records": 3,
    "web": 4,
    "cli": 5,
}  # fmt: skip

PAPERS_EDGES: dict[str, list[str]] = {
    "claims": ["lab"],
}

PAPERS_CAPTIONS = {
    "papers": "the registry of the five texts",
    "errors": "the exceptions of the lab",
    "lab": "runs, store, engines, statistics, figures",
    "claims": "what a claim is, how it is judged",
    "modularity": "experiments, claims",
    "infinite_width": "experiments, claims",
    "functional_equivalence": "experiments, claims",
    "depth_separation": "experiments, claims",
    "deep_learning_theory": "experiments, claims",
    "experiments": "the registry of all experiments",
    "catalogue": "the registry of all claims",
    "records": "results of verify as a file and as a page",
    "cli": "reproduce, figures, results, verify",
    "web": "the Results tab and its export",
}

"""A forest as XGBoost's JSON model; the schema is that of XGBoost 2 and 3."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...numerics.forest import COVER, FEATURE, GAIN, MISSING, THRESHOLD, VALUE, Forest

OBJECTIVES = {
    "squared": ("reg:squarederror", {"reg_loss_param": {"scale_pos_weight": "1"}}, "0"),
    "logistic": ("binary:logistic", {"reg_loss_param": {"scale_pos_weight": "1"}}, "5E-1"),
    "softmax": ("multi:softprob", {"softmax_multiclass_param": {"num_class": ""}}, "0"),
    "poisson": ("count:poisson", {"poisson_regression_param": {"max_delta_step": "7E-1"}}, "1"),
}
"""The name of each loss, its parameters, and the base score at which outputs begin at 0."""

ROOT = 2**31 - 1
"""The parent of a root."""


def model_of(forest: Forest) -> dict[str, Any]:
    """The model as plain values. The outputs before the first tree are in that tree's leaves."""
    layout = forest.layout
    name, parameters, score = OBJECTIVES[forest.loss]
    several = layout.outputs if forest.loss == "softmax" else 0
    if several:
        parameters = {"softmax_multiclass_param": {"num_class": str(several)}}
    trees: list[dict[str, Any]] = []
    for t, outputs in enumerate(forest.trees):
        for k, nodes in enumerate(outputs):
            trees.append(tree_of(nodes, len(trees), layout.columns, forest.base[k] if t == 0 else 0.0))
    model = {
        "gbtree_model_param": {"num_parallel_tree": "1", "num_trees": str(len(trees))},
        "iteration_indptr": [layout.outputs * t for t in range(forest.grown + 1)],
        "tree_info": [*range(layout.outputs)] * forest.grown,
        "trees": trees,
    }
    learner = {
        "attributes": {},
        "feature_names": [],
        "feature_types": [],
        "gradient_booster": {"model": model, "name": "gbtree"},
        "learner_model_param": {
            "base_score": score, "boost_from_average": "0", "num_class": str(several),
            "num_feature": str(layout.columns), "num_target": "1",
        },
        "objective": {"name": name, **parameters},
    }  # fmt: skip
    return {"learner": learner, "version": [2, 1, 0]}


def tree_of(nodes: np.ndarray, number: int, columns: int, base: float) -> dict[str, Any]:
    """One tree, of nodes [nodes, record] in a heap, with its nodes numbered without gaps."""
    heap = [0]
    for j in heap:  # grows while it is read
        if nodes[j, FEATURE] >= 0:
            heap += [2 * j + 1, 2 * j + 2]
    number_of = {j: i for i, j in enumerate(heap)}
    used = nodes[heap].astype(np.float64)
    inner = used[:, FEATURE] >= 0
    left = [number_of[2 * j + 1] if split else -1 for j, split in zip(heap, inner, strict=True)]
    values = used[:, VALUE] + base
    return {
        "base_weights": values.tolist(),
        "categories": [],
        "categories_nodes": [],
        "categories_segments": [],
        "categories_sizes": [],
        "default_left": used[:, MISSING].astype(int).tolist(),
        "id": number,
        "left_children": left,
        "loss_changes": used[:, GAIN].tolist(),
        "parents": [number_of[(j - 1) // 2] if j else ROOT for j in heap],
        "right_children": [i + 1 if i >= 0 else -1 for i in left],
        "split_conditions": np.where(inner, used[:, THRESHOLD], values).tolist(),
        "split_indices": np.maximum(used[:, FEATURE], 0).astype(int).tolist(),
        "split_type": [0] * len(heap),
        "sum_hessian": used[:, COVER].tolist(),
        "tree_param": {
            "num_deleted": "0", "num_feature": str(columns), "num_nodes": str(len(heap)), "size_leaf_vector": "1",
        },
    }  # fmt: skip

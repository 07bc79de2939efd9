"""Heads that transformers runs itself, to check those that are assembled here."""

from typing import Any

import numpy as np
import torch

from tests.families.proofs import TOKENS, Case


def mtp_model_deviation(case: Case, model: str) -> float:
    """How far the assembled head's logits are from those of transformers' own MtpModel."""
    import transformers
    from transformers.modeling_layers import MtpModel

    num_layers = case.reference.recipe.config["num_hidden_layers"]
    kind = getattr(transformers, model)
    # Its list of tensors that belong to a head has the layer numbers of the published models.
    small: Any = type(
        model, (kind,), {"_keys_to_ignore_on_load_unexpected": [rf"layers\.{num_layers}\."]}
    )
    head = MtpModel.from_pretrained(small.from_pretrained(case.folder))
    hidden = case.reference.trunk_rows(TOKENS)[1][:-1]
    expected = case.reference.head_rows(0, TOKENS[1:], hidden).logits
    with torch.no_grad():
        rows = head.forward_layer(
            0,
            torch.tensor(hidden)[None],
            torch.arange(len(hidden))[None],
            None,
            input_ids=torch.tensor([TOKENS[1:]]),
        )
        logits = head._project_to_logits(rows)[0].numpy()
    return float(np.abs(logits - expected).max() / np.abs(expected).max())

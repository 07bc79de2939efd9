"""Whether a checkpoint is a mixture of experts, by its config.json."""

import json
from pathlib import Path

_NUM_EXPERTS = ("num_experts", "n_routed_experts", "num_local_experts")
_NUM_CHOSEN = ("num_experts_per_tok", "num_experts_per_token", "moe_topk")


def experts_of(path: Path) -> tuple[int, int] | None:
    """How many experts a layer has and how many a token asks for; None where there are none."""
    try:
        config = json.loads((path / "config.json").read_bytes())
    except (OSError, ValueError):
        return None
    for part in (config, config.get("text_config")) if isinstance(config, dict) else ():
        if isinstance(part, dict):
            num_experts, num_chosen = _number(part, _NUM_EXPERTS), _number(part, _NUM_CHOSEN)
            if 0 < num_chosen < num_experts:
                return num_experts, num_chosen
    return None


def _number(config: dict[str, object], names: tuple[str, ...]) -> int:
    found = [config[name] for name in names if isinstance(config.get(name), int)]
    return found[0] if found and isinstance(found[0], int) else 0

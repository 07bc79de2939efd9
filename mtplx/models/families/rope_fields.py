"""Rotary settings where mlx-lm's models look for them.

Configurations written by transformers 5 have them in one record, `rope_parameters`; older ones,
and most of mlx-lm's models, in fields of their own. A model that misses its base takes another
without a word.
"""

from mtplx.models.family import Config


def flat_rope(config: Config) -> Config:
    """The configuration with what `rope_parameters` says also in fields of their own.

    What stands there already stays. A record that only names the default is no scaling.
    """
    record = config.get("rope_parameters")
    if not isinstance(record, dict) or "rope_theta" not in record:
        return config
    flat = {key: record[key] for key in ("rope_theta", "partial_rotary_factor") if key in record}
    scaled = record.get("rope_type", "default") != "default"
    return flat | {"rope_scaling": record if scaled else None} | dict(config)

"""Rotary settings in one record or in fields of their own."""

from mtplx.models.families.rope_fields import flat_rope

YARN = {"rope_theta": 5e5, "rope_type": "yarn", "factor": 4.0}


def test_a_record_is_also_in_fields_of_its_own() -> None:
    """Base and share of the rotated channels; a record of the default kind is no scaling."""
    record = {"rope_theta": 5e5, "partial_rotary_factor": 0.5, "rope_type": "default"}
    flat = flat_rope({"rope_parameters": record})
    assert (flat["rope_theta"], flat["partial_rotary_factor"]) == (5e5, 0.5)
    assert flat["rope_scaling"] is None


def test_a_record_that_scales_is_the_scaling() -> None:
    """With all that it says."""
    assert flat_rope({"rope_parameters": YARN})["rope_scaling"] == YARN


def test_what_stands_in_a_field_stays() -> None:
    """Older configurations have no record, and converted ones may have both."""
    older = {"rope_theta": 1e4, "rope_scaling": {"type": "yarn"}}
    assert flat_rope(older) == older
    assert flat_rope({**older, "rope_parameters": YARN}) == {**older, "rope_parameters": YARN}

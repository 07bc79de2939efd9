"""docs/models.md says what the families' data says."""

from tests.families.page import PAGE, page_with, table


def test_the_table_is_the_one_that_the_data_makes() -> None:
    """`python -m tests.families.page` writes it."""
    assert PAGE.read_text() == page_with(table())


def test_every_family_names_a_test_that_is_there() -> None:
    """And which holds it to its reference."""
    from mtplx.models.families import families

    root = PAGE.parents[1]
    for family in families():
        assert family.reference
        assert "assert_numbers(" in (root / family.tested).read_text(), family.name


def test_no_model_type_is_claimed_twice() -> None:
    """Which family a checkpoint is of never depends on the order of the table."""
    from mtplx.models.families import families

    kinds = [kind for family in families() for kind in family.model_types]
    assert len(kinds) == len(set(kinds))

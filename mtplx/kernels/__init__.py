"""Products with packed weights on a GPU: Metal functions from mtplx.metal, called with types."""

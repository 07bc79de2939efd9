"""The warps, one family per module; `mtplx.sampling.warp` puts them in their order."""

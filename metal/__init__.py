"""Compute kernels: whole Metal functions, one operation or one weight format per file."""

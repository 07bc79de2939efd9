"""The same greedy text twice: decoded token by token, and with the MTP head drafting."""

from mtplx import generate, load

PROMPT = "Write a Python function that adds two numbers."

model = load("smollm2")
if not model.can_draft:
    raise SystemExit(model.no_head_reason)
plain = generate(model, PROMPT, depth=0, temperature=0, max_tokens=60)
drafted = generate(model, PROMPT, depth=2, temperature=0, max_tokens=60)
print(drafted.text)
print(f"same tokens: {plain.token_ids == drafted.token_ids}")
print(f"plain:    {plain.tokens_per_s:.1f} tokens per second")
print(f"drafting: {drafted.tokens_per_s:.1f}, {drafted.acceptance_length:.2f} tokens per round")

"""One question, one answer."""

from mtplx import generate

result = generate("smollm2", "Why is the sky blue?", temperature=0, max_tokens=60)
print(result.text)

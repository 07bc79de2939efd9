"""Choose how tokens are drawn: temperature, filters, penalties, seeds, samples, where to stop."""

from mtplx import SamplingParams, generate, load

model = load("smollm2")
prompt = "Invent a name for a boat."

params = SamplingParams(temperature=1.0, top_p=0.9, min_p=0.05, seed=7, max_tokens=20)
first = generate(model, prompt, params)
again = generate(model, prompt, params)
other = generate(model, prompt, params, seed=8)  # single fields on top of `params`
print(f"seed 7: {first.text!r}")
print(f"seed 7: {again.text!r}")
print(f"seed 8: {other.text!r}")

for sample in generate(model, prompt, params, n=3):  # the prompt is read once
    print(f"seed {sample.seed}: {sample.text!r}")

scored = generate(model, "Name a color.", temperature=0, max_tokens=2, logprobs=3)
for token in scored.logprobs:
    others = ", ".join(f"{other.text!r} {other.logprob:.2f}" for other in token.top)
    print(f"{token.text!r} out of {others}")

listed = generate(
    model,
    "List five fruits, one in each line.",
    temperature=0,
    repetition_penalty=1.1,
    max_tokens=60,
    stop=("3.",),
)
print(f"ended by {listed.finish_reason}: {listed.text!r}")

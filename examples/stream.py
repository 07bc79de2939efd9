"""Show a reply as it comes, and what it cost."""

from mtplx import load, stream

model = load("smollm2")  # a path, a Hugging Face id or an alias; load once, ask often
for event in stream(model, "Name three rivers in Europe.", temperature=0, max_tokens=40):
    print(event.text, end="", flush=True)
    if event.result is not None:  # with the last event
        print(f"\n[{event.result.num_tokens} tokens, {event.result.tokens_per_s:.1f} per second]")

"""A conversation: what was computed for one turn is kept for the next."""

from mtplx import generate, load
from mtplx.text.template import Message

model = load("smollm2")
state = model.new_state()  # the memory of one conversation
messages = [Message("system", "Answer in one sentence.")]
for question in ("What is a glacier?", "Where is the largest one?"):
    messages.append(Message("user", question))
    result = generate(model, messages, state=state, temperature=0, max_tokens=40)
    messages.append(Message("assistant", result.text))
    print(f"> {question}\n{result.text}")
    print(f"[{result.num_reused_tokens} of {result.num_prompt_tokens} prompt tokens reused]\n")

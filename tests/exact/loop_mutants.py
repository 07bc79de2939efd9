"""Mistakes in drafting, in the decode loop and in what it moves."""

from mtplx import decode, drafting, rounds
from mtplx.cache import AttentionCache
from mtplx.models.llama import LlamaTarget
from mtplx.params import SamplingParams
from mtplx.state import DecodeState
from tests import test_decode
from tests.exact import test_coupled_text, test_forced_rounds, test_streams
from tests.exact.forced import EVERYTHING
from tests.exact.mutants import Mutant, Property, edit, named
from tests.hybrid import DeltaCache

GIVEN = test_forced_rounds.test_a_law_is_given_what_plain_decoding_draws_from
HANDED_OVER = test_forced_rounds.test_a_draft_hands_over_the_q_that_its_tokens_were_drawn_from
ONE_TEXT = test_coupled_text.test_a_seed_gives_one_text_at_every_depth


def forced(name: str, params: SamplingParams = EVERYTHING) -> tuple[str, Property]:
    shown = "all" if params is EVERYTHING else "t"
    return named(GIVEN)[0] + f"[{name}, {shown}]", lambda: GIVEN(name, params)


PLAINLY = SamplingParams(temperature=0.9)


DRAWN = "column = draw(q, draft_uniforms(self._seed, start, step)[None])"

DRAFTS = [
    Mutant(
        "drawn at temperature 1, handed over at the request's",
        edit(drafting.Drafting._choose, DRAWN, DRAWN.replace("draw(q", "draw(mx.softmax(logits)")),
        named(HANDED_OVER, 0.6, "sampled"),
        seen=(8,),
    ),
    Mutant(
        "drawn in bfloat16, handed over in float32",
        edit(
            drafting.Drafting._choose,
            DRAWN,
            DRAWN.replace("draw(q", "draw(q.astype(mx.bfloat16).astype(q.dtype)"),
        ),
        named(HANDED_OVER, 1.5, "sampled"),
        seen=(9,),
    ),
    Mutant(
        "an argmax handed over with the q of a draw",
        edit(drafting.Drafting._choose, DRAWN, "column = mx.argmax(q, axis=-1).astype(mx.int32)"),
        named(HANDED_OVER, 1.5, "sampled"),
        seen=(5,),
    ),
    Mutant(
        "a drawn token discarded for being improbable",
        edit(
            drafting.Drafting._choose,
            DRAWN,
            f"{DRAWN}\n        if chain.least and q[0, column[0]].item() < chain.least[step] / 2:\n"
            "            return None",
        ),
        named(test_streams.test_whether_a_draft_goes_on_is_settled_before_the_draw, "sampled"),
    ),
    Mutant(
        "noise of the draft's beginning at each of its places",
        edit(
            drafting.Drafting._choose,
            "noise_keys(self._seed, start + step, 1)",
            "noise_keys(self._seed, start, 1)",
        ),
        named(test_coupled_text.test_a_drafter_that_is_the_target_is_never_refused, "coupled"),
    ),
    Mutant(
        "noise of the column, not of the token",
        edit(
            drafting.Drafting._ids,
            "mx.arange(logits.shape[-1]) if ids is None else ids",
            "mx.arange(logits.shape[-1])",
        ),
        named(test_coupled_text.test_noise_belongs_to_the_token_not_to_its_column),
    ),
]

LOOP = [
    Mutant(
        "the target warped with the default fields",
        edit(
            rounds.Rounds._queue,
            "warp(passed.logits, self.params,",
            "warp(passed.logits, SamplingParams(),",
        ),
        forced("attention"),
        seen=(10,),
    ),
    Mutant(
        "a history without the pending token",
        edit(rounds.Rounds._queue, "History(tokens, ahead", "History(tokens[:-1], ahead"),
        forced("attention"),
        seen=(13,),
    ),
    Mutant(
        "XTC's numbers of the round, not of the position",
        edit(
            rounds.Rounds._gates,
            "gate_uniforms(self.seed, position, count)",
            "mx.broadcast_to(gate_uniforms(self.seed, position, 1), (count,))",
        ),
        forced("attention"),
    ),
    Mutant(
        "a rejected tail left in the attention cache",
        edit(AttentionCache.keep, "self.offset -= self._last_pass - num_tokens", "pass"),
        forced("attention", PLAINLY),
        seen=(15,),
    ),
    Mutant(
        "a shared prefix that is not gone back to",
        edit(DecodeState._go_back_to, "layer.rewind(length)", "layer.rewind(layer.offset)"),
        forced("attention", PLAINLY),
        seen=(14,),
    ),
    Mutant(
        "a difference between two prompts that is overlooked",
        edit(
            DecodeState._go_back_to,
            "self.token_ids[shared] == prompt_ids[shared]",
            "(self.token_ids[shared] == prompt_ids[shared] or shared == 4)",
        ),
        forced("hybrid", PLAINLY),
        seen=(14,),
    ),
    Mutant(
        "recurrent state that keeps rejected tokens",
        edit(DeltaCache.keep, "self._refolded(self._before, tape, start)", "self.memory"),
        forced("hybrid", PLAINLY),
        seen=(14, 15),
    ),
    Mutant(
        "convolution inputs that are not rolled back",
        edit(
            DeltaCache.keep,
            "self.memory = self._refolded(self._before, tape, start)",
            "self.memory = Memory("
            "self._refolded(self._before, tape, start).state, self.memory.window)",
        ),
        forced("hybrid", PLAINLY),
        seen=(16,),
    ),
    Mutant(
        "recurrent state that is not gone back to with a prefix",
        edit(DeltaCache.rewind, "self._refolded(blank(), self.tape, 0)", "self.memory"),
        forced("hybrid", PLAINLY),
        seen=(14,),
    ),
    Mutant(
        "the last accepted token without keys and values",
        edit(
            decode._Decoder.emissions,
            "state.keep([tokens[-1], *emitted[:-1]])",
            "state.keep([tokens[-1], *emitted[:-2]])",
        ),
        forced("attention", PLAINLY),
        seen=(18,),
    ),
    Mutant(
        "tokens behind the end committed",
        edit(
            decode._Decoder.emissions,
            "state.keep([tokens[-1], *emitted[:-1]])",
            "state.keep([tokens[-1], *found.token_ids[:-1]])",
        ),
        named(test_decode.test_an_end_token_ends_the_text_wherever_it_stands, 5, 3),
    ),
    Mutant(
        "a block that is computed otherwise than single rows",
        edit(
            LlamaTarget.logits,
            "self.lm_head(hidden)",
            "self.lm_head(hidden if len(hidden) == 1 else hidden.astype(mx.bfloat16))",
        ),
        forced("attention", PLAINLY),
        seen=(24,),
    ),
    Mutant(
        "a block that is computed a little otherwise",
        edit(
            LlamaTarget.logits,
            "self.lm_head(hidden)",
            "self.lm_head(hidden if len(hidden) == 1 else hidden * 1.5)",
        ),
        named(ONE_TEXT, "random head"),
        seen=(24,),
    ),
]

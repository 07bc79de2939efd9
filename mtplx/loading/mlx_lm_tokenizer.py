"""A tokenizer as mlx-lm's generation functions take it."""

from typing import Any

from mtplx.loading.tokenizer import Tokenizer
from mtplx.loading.vocabulary import Spelling


def mlx_lm_tokenizer(tokenizer: Tokenizer) -> Any:
    """mlx_lm's TokenizerWrapper over the same vocabulary, with the same tokens ending a reply.

    It detokenises with the class that mlx-lm itself chooses for this kind of vocabulary; the one
    it falls back to otherwise takes longer the longer a line is.
    """
    from mlx_lm import tokenizer_utils
    from transformers import PreTrainedTokenizerFast

    detokenizers = {
        Spelling.BYTE_LEVEL: tokenizer_utils.BPEStreamingDetokenizer,
        Spelling.SENTENCEPIECE: tokenizer_utils.SPMStreamingDetokenizer,
    }
    return tokenizer_utils.TokenizerWrapper(
        PreTrainedTokenizerFast(tokenizer_object=tokenizer._backend),
        detokenizers[tokenizer.spelling],
        eos_token_ids=tokenizer.stop_ids,
    )

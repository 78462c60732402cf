"""`tiny`: a random-weight Qwen3 of 29 million parameters with its own byte-level BPE, made from a fixed seed.

It says nothing that means anything, but it is a good instrument:

- Its replies survive the round trip. A reply is decoded to text, sent back as history and encoded again; KV can be read
  back only as far as the tokens are the same. The model says whole words with a space before them and nothing else,
  each of them one token and one unit of the pre-tokenizer, so encoding what was decoded gives the same tokens.
- Every token of the prompt counts. Attention is sharp (logits of standard deviation about 2), so that a changed word
  anywhere changes a greedy reply within some tokens: KV of another prompt shows as another answer.
- It hardly ever ends a reply by itself: replies have the length that was asked for, 512 tokens where none was. A client
  ends one early with `logit_bias` on the token `<|im_end|>`.

The words come from Python's own library: another Python version makes another model, the same one the same.
"""

import re
import sysconfig
from collections import Counter
from pathlib import Path
from typing import Any, Final

from neuron_pd.models.packages import importing
from neuron_pd.models.store import Recipe, Say

VOCABULARY: Final = 4096
HIDDEN: Final = 512
LAYERS: Final = 8
HEAD: Final = 64
MAX_LENGTH: Final = 32768
DEFAULT_REPLY: Final = 512  # tokens, where the client names no limit
SEED: Final = 20260

TEXT_FILES: Final = 150
WORD_COUNT: Final = 40  # a word must occur this often in the text to be said
END, START, PAD = "<|im_end|>", "<|im_start|>", "<|endoftext|>"
# Words and numbers with their space, marks one by one, spaces in a run: the boundaries of a spoken word never move.
UNITS: Final = r" ?\p{L}+| ?\p{N}{1,3}|[^\s\p{L}\p{N}]|[^\S\n]+(?=\S)|\s"

SHARPNESS: Final = 1.5  # norm weight of q and k: attention logits have standard deviation SHARPNESS squared
LOGIT_SCALE: Final = 3.0
NEVER: Final = -1000.0
END_BIAS: Final = -3.0  # one standard deviation below the words: about once in 60,000 tokens

# A turn is rendered from its own message alone, so a longer conversation starts with the shorter one's text.
CHAT_TEMPLATE: Final = """\
{%- if tools %}{{ '<|im_start|>system\\n# Tools\\n' }}\
{%- for tool in tools %}{{ (tool | tojson) + '\\n' }}{% endfor %}{{ '<|im_end|>\\n' }}{% endif %}\
{%- for message in messages %}\
{{- '<|im_start|>' + message['role'] + '\\n' }}\
{%- if message['content'] %}{{ message['content'] }}{% endif %}\
{%- for call in message['tool_calls'] or [] %}\
{{- '<tool_call>' + (call['function'] | tojson) + '</tool_call>' }}\
{%- endfor %}\
{{- '<|im_end|>\\n' }}\
{%- endfor %}\
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""


def make(directory: Path, say: Say) -> None:
    """Write the model and its tokenizer into `directory`. MissingDependency without torch or transformers."""
    with importing():
        import torch  # noqa: F401
        from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM  # noqa: F401
        from transformers.utils.logging import disable_progress_bar
    disable_progress_bar()
    say("training the tokenizer on Python's own library")
    tokenizer, words = _tokenizer()
    tokenizer.save_pretrained(directory)
    say(f"drawing the weights; the model speaks {len(words)} words")
    model = _model(tokenizer)
    _draw(model, words, tokenizer.eos_token_id)
    model.generation_config.max_new_tokens = DEFAULT_REPLY
    model.generation_config.do_sample = False
    model.save_pretrained(directory)


def _texts() -> list[str]:
    library = Path(sysconfig.get_path("stdlib"))
    files = sorted(library.glob("*.py"))[:TEXT_FILES]
    return [path.read_text(encoding="utf-8", errors="replace") for path in files]


def _tokenizer() -> tuple[Any, list[int]]:
    """The trained tokenizer, and the tokens that the model may say."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(UNITS), "isolated"), pre_tokenizers.ByteLevel(False, use_regex=False)]
    )
    bpe.decoder = decoders.ByteLevel()
    texts = _texts()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[PAD, START, END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator(texts, trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        eos_token=END,
        pad_token=PAD,
        clean_up_tokenization_spaces=False,
        model_max_length=MAX_LENGTH,
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer, _words(bpe, texts)


def _words(bpe: Any, texts: list[str]) -> list[int]:
    """Tokens that are a whole word with its space, frequent in the text as such, and encoded as themselves."""
    counts = Counter(unit for text in texts for unit, _ in bpe.pre_tokenizer.pre_tokenize_str(text))
    return sorted(
        token
        for unit, token in bpe.get_vocab().items()
        if re.fullmatch("Ġ[A-Za-z]{2,}", unit)
        and counts[unit] >= WORD_COUNT
        and bpe.encode(f" {unit[1:]}").ids == [token]
    )


def _model(tokenizer: Any) -> Any:
    from transformers import Qwen3Config, Qwen3ForCausalLM

    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=HIDDEN,
        intermediate_size=3 * HIDDEN,
        num_hidden_layers=LAYERS,
        num_attention_heads=HIDDEN // HEAD,
        num_key_value_heads=HIDDEN // HEAD // 2,
        head_dim=HEAD,
        max_position_embeddings=MAX_LENGTH,
        tie_word_embeddings=False,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
    )
    return Qwen3ForCausalLM(config).float().eval()


def _draw(model: Any, words: list[int], end: int) -> None:
    """Draw all weights. Channel 0 of the residual stream stays at 1 and serves the output layer as a bias."""
    import torch

    generator = torch.Generator().manual_seed(SEED)

    def draw(weight: Any, deviation: float) -> None:
        weight.copy_(torch.randn(weight.shape, generator=generator) * deviation)

    narrow, wide = HIDDEN**-0.5, (3 * HIDDEN) ** -0.5
    with torch.no_grad():
        draw(model.model.embed_tokens.weight, 1.0)
        model.model.embed_tokens.weight[:, 0] = 1.0
        for layer in model.model.layers:
            attention, mlp = layer.self_attn, layer.mlp
            for part in (attention.q_proj, attention.k_proj, attention.v_proj, attention.o_proj):
                draw(part.weight, narrow)
            for part, deviation in ((mlp.gate_proj, narrow), (mlp.up_proj, narrow), (mlp.down_proj, wide)):
                draw(part.weight, deviation)
            attention.o_proj.weight[0] = mlp.down_proj.weight[0] = 0.0
            attention.q_norm.weight.fill_(SHARPNESS)
            attention.k_norm.weight.fill_(SHARPNESS)
        _draw_output(model.lm_head.weight, words, end, draw)


def _draw_output(weight: Any, words: list[int], end: int, draw: Any) -> None:
    rows = weight.clone()
    draw(rows, LOGIT_SCALE * HIDDEN**-0.5)
    rows[:, 0] = 0.0
    rows[end, 0] = END_BIAS
    weight.zero_()
    weight[:, 0] = NEVER
    weight[[*words, end]] = rows[[*words, end]]


RECIPE: Final = Recipe("tiny", version=1, size=200 * 2**20, make=make)

#!/usr/bin/env python3
"""Make the small tokenizers and expected ids that src/text's tests read.

    pip install -r tools/requirements-text.txt
    tools/make_tokenizer_fixtures.py tests/golden/tokenizers

Trains four tokenizers on this repository's sources, one for each family that we read, and lets
Hugging Face's `tokenizers` encode and decode the same texts with each.
"""

import json
import pathlib
import random
import sys

import check_tokenizer as check
from tokenizers import (AddedToken, Regex, Tokenizer, decoders, models, normalizers,
                        pre_tokenizers, processors, trainers)

ROOT = pathlib.Path(__file__).resolve().parent.parent
O200K = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
         r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+"
         r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}|"
         r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
ADDED = [AddedToken("<left>", lstrip=True, normalized=False),
         AddedToken("<right>", rstrip=True, normalized=False),
         AddedToken("WORD", single_word=True, normalized=False),
         AddedToken("Café", normalized=True),
         AddedToken("<think>", normalized=False)]
SPECIAL = ["<s>", "</s>", "<|im_start|>"]
TEXTS = ["", " ", "a", "Hello world", " Hello  world ", "int main() { return 0; }\n", "it's we'LL",
         "a<s>b</s>", "x <left> y <right>  z", "<left><right>", "WORD WORDS aWORD WORD.", "Cafe\u0301",
         "Café", "café", "<think>ok</think>", "12345 67 8", "\n\n\n  \t x", "ΑΒΓ αβγ ς", "日本語テスト",
         "한국어", "नमस्ते", "😀👩‍👩‍👧‍👦🏳️‍🌈", "\u180e x", "ﬁ ① Å İ ß", "a\u0301\u0327", "e" * 120, " " * 60,
         "ab" * 70, "<|im_start|>user\nhi", "<|im_start|", "\u0000\u0001", "▁ ▁▁x", "<0x41>", "...!?--",
         "a,b;c", "\r\n\r\n", "x\u00a0y\u3000z", "\ufeff", "\U0010ffff"]


def corpus() -> list[str]:
    files = sorted(f for f in (ROOT / "src").rglob("*.h"))
    return [f.read_text(encoding="utf-8") for f in files]


def finish(tokenizer: Tokenizer, template: bool) -> Tokenizer:
    tokenizer.add_tokens(ADDED)
    tokenizer.add_special_tokens(SPECIAL)
    if template:
        begin, end = (tokenizer.token_to_id(t) for t in SPECIAL[:2])
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<s> $A </s>", special_tokens=[("<s>", begin), ("</s>", end)])
    return tokenizer


def gpt2() -> Tokenizer:
    """Byte level by GPT-2's expression behind single digits, NFC."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True),
         pre_tokenizers.ByteLevel(add_prefix_space=False)])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(corpus(), trainers.BpeTrainer(
        vocab_size=700, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    return finish(tokenizer, template=True)


def o200k() -> Tokenizer:
    """Byte level by gpt-oss' expression, words of the vocabulary whole."""
    tokenizer = Tokenizer(models.BPE(ignore_merges=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(O200K), "isolated"),
         pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(corpus(), trainers.BpeTrainer(
        vocab_size=600, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    return finish(tokenizer, template=False)


def llama() -> Tokenizer:
    """As Llama 2 and Mixtral: no words, byte fallback, one space before the text."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")  # for training only
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(),
         decoders.Strip(" ", 1, 0)])
    special = ["<unk>", "<s>", "</s>"] + [f"<0x{byte:02X}>" for byte in range(256)]
    tokenizer.train_from_iterator(corpus(), trainers.BpeTrainer(
        vocab_size=800, special_tokens=special, show_progress=False))
    data = json.loads(tokenizer.to_str())
    data["pre_tokenizer"] = None
    data["added_tokens"] = data["added_tokens"][:3]
    return finish(Tokenizer.from_str(json.dumps(data)), template=True)


def metaspace() -> Tokenizer:
    """Metaspace before the first word only, NFKC in lower case, punctuation apart, unknown tokens."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=False))
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Metaspace(prepend_scheme="first"), pre_tokenizers.Punctuation("contiguous")])
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="first")
    tokenizer.train_from_iterator(corpus(), trainers.BpeTrainer(
        vocab_size=500, special_tokens=["<unk>"], show_progress=False))
    return finish(tokenizer, template=False)


def cases(tokenizer: Tokenizer, seed: int) -> list[dict[str, object]]:
    rng = random.Random(seed)
    special = [t.content for t in tokenizer.get_added_tokens_decoder().values()]
    data = [t.encode("utf-8") for t in TEXTS]
    data += [" ".join(check.word(rng) for _ in range(rng.randint(1, 3))).encode() for _ in range(40)]
    data += [check.mixture(rng, special)[:40].encode("utf-8") for _ in range(40)]
    data += [check.broken(rng, check.mixture(rng, special)[:40]) for _ in range(30)]
    out = []
    for text in data:
        encoding = tokenizer.encode(text.decode("utf-8", "replace"))
        out.append({"hex": text.hex(), "ids": encoding.ids, "decoded": tokenizer.decode(
            encoding.ids, skip_special_tokens=len(out) % 2 == 0)})
    for _ in range(40):  # ids in an order that no text gives: broken characters
        ids = rng.choices(range(tokenizer.get_vocab_size()), k=rng.randint(1, 12))
        out.append({"ids": ids, "decoded": tokenizer.decode(ids, skip_special_tokens=True)})
    return out


def main() -> None:
    folder = pathlib.Path(sys.argv[1])
    for seed, make in enumerate((gpt2, o200k, llama, metaspace)):
        target = folder / make.__name__
        target.mkdir(parents=True, exist_ok=True)
        tokenizer = make()
        (target / "tokenizer.json").write_text(
            json.dumps(json.loads(tokenizer.to_str()), ensure_ascii=False, indent=None,
                       separators=(",", ":")) + "\n", encoding="utf-8")
        lines = [json.dumps(case, ensure_ascii=False, separators=(",", ":"))
                 for case in cases(tokenizer, seed)]
        (target / "cases.json").write_text("[\n" + ",\n".join(lines) + "\n]\n", encoding="utf-8")


if __name__ == "__main__":
    main()

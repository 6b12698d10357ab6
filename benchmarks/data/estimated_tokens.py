"""Tokens of dropped documents: the estimate of the report beside the exact count.

    python estimated_tokens.py [--corpus NAME] [--clean RULES] [--shards N] [--vocab-size N]

The documents are cleaned in shards; the tokenizer is trained on every tenth of them.
"""

import argparse
from collections import Counter

from corpora import FOR_RULES

from meshwright.data.clean.cleaner import Cleaning
from meshwright.data.clean.sample import EDITED_AWAY, Samples, estimate_tokens
from meshwright.data.vocabulary.tokenizer import train_tokenizer


def main() -> None:
    """Print a line for each rule, most tokens first, and their sum."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", choices=FOR_RULES, default="standard library")
    parser.add_argument("--clean", default="gopher,c4,fineweb", metavar="RULES")
    parser.add_argument("--shards", type=int, default=2)
    parser.add_argument("--vocab-size", type=int, default=8000)
    args = parser.parse_args()
    texts = [text for text in FOR_RULES[args.corpus]() if text.strip()]
    encode = train_tokenizer(iter(texts[::10]), args.vocab_size).encode
    samples = [Samples(number, args.shards) for number in range(args.shards)]
    exact: Counter[str] = Counter()
    clean = Cleaning(rule_sets=tuple(args.clean.split(","))).cleaner()
    for number, text in enumerate(texts):
        decision = clean(text)
        shard = samples[number * args.shards // len(texts)]
        if decision.text is None:
            shard.drop(str(decision.rule), text)
            exact[str(decision.rule)] += len(encode([text])[0])
        elif decision.text != text:
            shard.edit(text, decision.text)
            exact[EDITED_AWAY] += len(encode([text])[0]) - len(encode([decision.text])[0])
    found = estimate_tokens((shard.as_json() for shard in samples), encode)
    for rule, tokens in exact.most_common():
        estimate = found[rule]
        print(f"{rule:40} {_line(tokens, estimate.tokens)}, {estimate.sampled / estimate.characters:.0%} sampled")
    print(f"{'all':40} {_line(exact.total(), sum(estimate.tokens for estimate in found.values()))}")


def _line(exact: int, estimate: float) -> str:
    return f"{exact:9} tokens, estimated {estimate:11.0f}, {estimate / exact - 1:+.2%}"


if __name__ == "__main__":
    main()

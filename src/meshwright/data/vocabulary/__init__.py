"""Vocabularies: tokenizer.json, sentencepiece and tiktoken files, and the engines that encode with them."""

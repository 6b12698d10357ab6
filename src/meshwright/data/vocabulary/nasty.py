"""Texts that are hard to tokenize, with which two ways of encoding are held against each other."""

LETTERS = "\u00e9e\u0301\u0130\u0131\u017f\u00df\u01c5\u03c3\u03c2\u0416\u05d0\u0627\u064e\u0905\u093f\u0e01\u0e31"
EAST_ASIAN = (
    "\u4e2d\u6587\u3002\u300c\u65e5\u672c\u8a9e\u300d\u30ab\u3099\u30ac \uac00\u1112\u1161\u11ab\uff21\uff11\u3000x"
)
EMOJI = (
    "\U0001f600\U0001f468\u200d\U0001f469\u200d\U0001f467\U0001f1e9\U0001f1ea"
    "\u2764\ufe0f1\ufe0f\u20e3\U0001f44d\U0001f3fd"
)
NUMBERS = "0 12 345 6789 1234567890 3.14 1,000 \u00b2\u00bd\u2167\u0664\u0665 1a2b 007\n42\t"
CONTROLS = (
    "".join(map(chr, range(32))) + "\x7f\x80\x85\xad\u200b\u200e\u2028\u2029\ufeff\ufffd\ufffe\ue000\U0010ffff\u0378"
)
SPACES = "a b  c   d\te\t\tf\u00a0g\u2003\u2003h \u00a0 i\n\nj\r\nk\r\n\r\n  l \n m\n \n\t\n n   "
WORDS = "Don't DON'T don\u2019t we'll I'd've 'tis 'S '\u017f it's_a camelCaseHTMLParser x+=1; //-- ... !?\n\n!\n/a/b\n"
SPECIALS = "<|endoftext|> </s><s><unk> <|end_of_text|>[CLS]<0x41> <pad>\u2581\u2581x \u2581 <|im_start|>user"
RUNS = " " * 70 + "x" + "\n" * 33 + "=" * 65 + "a" * 130 + "\u4e2d" * 40 + "\t" * 17 + "ab" * 40 + "\u0301" * 20

NASTY_TEXTS = (
    LETTERS,
    EAST_ASIAN,
    EMOJI,
    NUMBERS,
    CONTROLS,
    SPACES,
    WORDS,
    SPECIALS,
    RUNS,
    " leading",
    "trailing ",
    "\n",
    " ",
    "",
    " ".join((LETTERS, EAST_ASIAN, EMOJI, NUMBERS, CONTROLS, SPACES, WORDS, SPECIALS, RUNS)),
    "'".join(LETTERS + EAST_ASIAN + EMOJI) + "\n".join(LETTERS + NUMBERS) + "1".join(EMOJI + LETTERS),
)

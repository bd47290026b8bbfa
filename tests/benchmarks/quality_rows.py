"""The rows of the quality benchmark: settings, the peers' figures, and the limits on the ratios."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["QUICK_ROWS", "ROWS", "Peer", "Row"]


@dataclass(frozen=True, slots=True)
class Peer:
    """A peer's figures on the same tokens; times on two threads."""

    tool: str
    kl_wiki: float
    kl_chat: float
    perplexity: float
    top1: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Row:
    """One setting, with the largest ratios to the peer's KL and time that are accepted.

    KL is that on wikitext, which shares nothing with calibration, or, `over_both`, the mean over wikitext
    and chat.
    `bits` is a width for all weights, or, with a fraction, a budget of bits a weight for a search.
    `more` are further keys of the recipe's quantize block. `group_sizes` are what a search chooses from.
    `curve` is the same for a mixed model and the uniform ones that it is compared with.
    """

    name: str
    method: str
    symmetric: bool
    peer: Peer | None
    kl_limit: float | None = 1.0
    time_limit: float | None = 0.5
    scheme: str | None = None
    bits: float = 4
    more: str = ""
    group_sizes: tuple[int, ...] = ()
    curve: str = ""
    over_both: bool = False

    def held_kl(self, wiki: float, chat: float) -> float:
        """The KL that the limit is on."""
        return (wiki + chat) / 2 if self.over_both else wiki

    @property
    def is_mixed(self) -> bool:
        """Whether a search chooses widths."""
        return self.bits % 1 != 0

    @property
    def needs_data(self) -> bool:
        """Whether the recipe needs calibration tokens."""
        return self.is_mixed or self.method not in ("rtn", "hqq")

    @property
    def quantize(self) -> str:
        """The recipe's quantize block; weights only in groups of 64 unless a scheme is named."""
        if self.bits != 4:
            rest = f"symmetric: {str(self.symmetric).lower()}, group_size: 64, method: {self.method}"
            if not self.is_mixed:
                return f"bits: {int(self.bits)}, {rest}{self.more}"
            search = f"budget: {{bits_per_weight: {self.bits}}}, group_size: {list(self.group_sizes)}"
            return f"bits: {int(self.bits)}, {rest}, search: {{{search}}}{self.more}"
        if self.scheme is not None:
            return f"scheme: {self.scheme}, method: {self.method}{self.more}"
        scheme = f"W4A16{'' if self.symmetric else '_ASYM'}"
        return f"scheme: {scheme}, group_size: 64, method: {self.method}{self.more}"


# Both quantized the model after a rescaling of its channels that leaves its function as it is. The limit
# is what they lose over wikitext and chat together, 0.023 and 0.029.
SMOOTHQUANT = Peer("llmcompressor 0.14.0.1", 0.0183, 0.0277, 20.56, 0.919, 63)
FLOAT8 = Peer("float8 by hand", 0.0249, 0.0333, 20.64, 0.907, 1)

LLM_COMPRESSOR_GPTQ = Peer("llmcompressor 0.14.0.1", 0.159, 0.185, 24.32, 0.788, 119)
LLM_COMPRESSOR_AWQ = Peer("llmcompressor 0.14.0.1", 0.151, 0.174, 24.19, 0.792, 456)
AUTOROUND_SYM = Peer("auto-round 0.16.1", 0.117, 0.073, 22.79, 0.838, 818)
PLAIN_ASYM = Peer("plain rounding", 0.282, 0.365, 24.90, 0.709, 0.14)
OURS_GPTQ = Peer("GPTQ asym alone", 0.093, 0.069, 22.04, 0.850, 55)
"""Our own row of the same name without rotation or scaling."""

REFINED = ", rotate: hadamard, gptq: {refine: 1}"

ROWS = (
    Row("GPTQ sym", "gptq", True, Peer("gptqmodel 7.6.0", 0.232, 0.249, 25.15, 0.749, 125)),
    Row("GPTQ sym rotated", "gptq", True, AUTOROUND_SYM, 0.105 / 0.117, 1.0, more=", rotate: hadamard"),
    Row("GPTQ sym rotated, refined", "gptq", True, AUTOROUND_SYM, 0.105 / 0.117, 1.0, more=REFINED),
    Row("GPTQ asym", "gptq", False, LLM_COMPRESSOR_GPTQ, curve="GPTQ"),
    Row("GPTQ asym rotated", "gptq", False, OURS_GPTQ, None, None, more=", rotate: hadamard"),
    Row("GPTQ asym scaled", "gptq", False, OURS_GPTQ, None, None, more=", scale: awq"),
    Row("HQQ asym", "hqq", False, PLAIN_ASYM, None, None, curve="HQQ"),
    Row("AWQ asym", "awq", False, LLM_COMPRESSOR_AWQ, curve="AWQ"),
    Row(
        "SignRound sym",
        "signround",
        True,
        AUTOROUND_SYM,
        kl_limit=0.105 / 0.117,
        time_limit=1.0,
    ),
    Row(
        "SignRound asym",
        "signround",
        False,
        Peer("auto-round 0.16.1", 0.097, 0.069, 22.55, 0.843, 787),
        kl_limit=0.088 / 0.097,
        time_limit=1.0,
    ),
    Row(
        "W8A8 SmoothQuant",
        "smoothquant",
        True,
        SMOOTHQUANT,
        kl_limit=1.0,
        time_limit=None,
        scheme="W8A8",
        over_both=True,
    ),
    Row("FP8 dynamic", "rtn", True, FLOAT8, time_limit=None, scheme="FP8_DYNAMIC", over_both=True),
    Row("W4A8 GPTQ", "gptq", True, None, scheme="W4A8", more=", group_size: 64"),
    Row("NVFP4A16", "rtn", True, None, scheme="NVFP4A16"),
    Row("MXFP4A16", "rtn", True, None, scheme="MXFP4A16"),
    Row("RTN sym", "rtn", True, Peer("plain rounding", 0.401, 0.474, 28.53, 0.674, 0.14), None, None),
    Row("RTN asym", "rtn", False, PLAIN_ASYM, None, None, curve="RTN"),
    Row("3 bits: RTN asym", "rtn", False, None, bits=3),
    Row("3 bits: GPTQ asym", "gptq", False, None, bits=3),
    Row("3 bits: GPTQ asym rotated, refined", "gptq", False, None, bits=3, more=REFINED),
    Row("3 bits: SignRound asym", "signround", False, None, bits=3),
    Row("RTN asym, 5 bits", "rtn", False, None, bits=5, curve="RTN"),
    Row("HQQ asym, 5 bits", "hqq", False, None, bits=5, curve="HQQ"),
    Row("AWQ asym, 5 bits", "awq", False, None, bits=5, curve="AWQ"),
    Row("GPTQ asym, 5 bits", "gptq", False, None, bits=5, curve="GPTQ"),
    Row("Mixed RTN, 4.5 bits", "rtn", False, None, bits=4.5, curve="RTN"),
    Row("Mixed HQQ, 4.5 bits", "hqq", False, None, bits=4.5, curve="HQQ"),
    Row("Mixed AWQ, 4.5 bits", "awq", False, None, bits=4.5, curve="AWQ"),
    Row("Mixed GPTQ, 4.5 bits", "gptq", False, None, bits=4.5, curve="GPTQ"),
    Row(
        "Mixed GPTQ, 4.5 bits and groups",
        "gptq",
        False,
        None,
        bits=4.5,
        group_sizes=(64, 96, 192),
        curve="GPTQ",
    ),
)
QUICK_ROWS = ("GPTQ asym", "RTN asym")

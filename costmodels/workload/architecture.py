"""Facts of a transformer as flat fields, and the model that they describe.

Presets, Hugging Face configurations, TOML files and measured runs all state their facts as an :class:`Architecture`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from itertools import groupby
from types import MappingProxyType
from typing import Final

from costmodels.workload.block import inner_norm_parameters
from costmodels.workload.mixers import MIXER_LETTERS, MIXER_NAMES, MIXER_NEEDS, WITH_HEADS, mixer_of
from costmodels.workload.model import Attention, DenseFfn, Ffn, LayerKind, LayerRun, ModelSpec, MoeFfn
from hardware.errors import InputError

FFN_LETTERS: Final = "de"  # dense, experts
MAX_LAYERS: Final = 10_000
HYBRID_LETTERS: Final = "M*-E"  # of Nemotron-H's and Megatron-LM's patterns, which know no Mamba-1
_NORMS: Final = MappingProxyType({"rms": 1, "layer": 2, "bare": 0})  # parameters of a norm for each element
_SINGLE: Final = MappingProxyType({"M": ("M", ""), "S": ("S", ""), "*": ("f", ""), "-": ("", "d"), "E": ("", "e")})
"""Letters of layers of one part each, as letters of the mixer and of the feed-forward part."""


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """A transformer, hybrid or not; widths in elements, 0 or empty where the model has no such thing.

    Attributes
    ----------
    layers, hidden, vocab : int
        Blocks, width, tokenizer size.
    family : str
        Name of the line of models, for reports.
    heads, kv_heads, head_dim, value_dim : int
        Attention heads; 0 kv heads: as many as heads; 0 head_dim: ``hidden / heads``; 0 value_dim: as head_dim.
    ffn, gated, ffn_bias, activation_parameters : int, bool, bool, int
        Width of dense feed-forward parts; whether gated; whether biased; numbers that their activation learns.
    norm : str
        ``rms`` (weights), ``layer`` (weights and biases) or ``bare`` (neither).
    norms_per_layer : int
        0: one before each part; more: further ones after the parts; 1 with ``parallel``: one shared norm.
    qkv_bias, out_bias, qk_norm, qk_norm_parameters, output_gate, sinks, rotary, window :
        As in :class:`costmodels.workload.model.Attention`.
    window_sinks : bool
        Sinks in windowed layers alone.
    mixer_pattern, ffn_pattern : str
        One letter per layer, repeated to the number of layers: ``f`` full attention, ``w`` windowed, ``i`` windowed
        with an indexer, ``c`` windowed beside compressed keys that an indexer chooses, ``h`` windowed beside heavily
        compressed ones, ``C`` short convolution (``mamba_conv_bias``: with biases), ``l`` gated delta rule, ``L``
        lightning attention, ``M`` Mamba-2, ``S`` Mamba-1, ``P`` full attention and Mamba-2 side by side, ``b`` and
        ``v`` full and windowed with the keys and values of an earlier layer; ``d`` dense, ``e`` experts. Empty: all
        full (windowed when a window is set); all dense (experts when there are).
    first_dense : int
        Leading layers that are dense whatever the pattern says.
    hybrid_pattern : str
        One letter per layer, each layer one part: ``M`` Mamba-2, ``S`` Mamba-1, ``*`` attention, ``-`` dense, ``E``
        experts.
    q_rank, kv_rank, rope_dim : int
        Latent attention when ``kv_rank`` is set; ``head_dim`` then includes ``rope_dim``.
    shared_kv, out_rank, out_groups : bool, int, int
        Low-rank projections of grouped attention, with ``q_rank``.
    index_heads, index_dim, index_weights : int, int, bool
        Indexer of layers with the letter ``i``; the window is the number of keys that it chooses; whether its heads'
        scores are weighed.
    head_gate : bool
        One gate for every head of attention.
    sparse_rate, heavy_rate, chosen : int
        Tokens that one compressed key stands for in layers ``c`` and ``h``, and how many of them the indexer of layers
        ``c`` chooses.
    streams, alternating : int, bool
        Residual streams, where more than one run through the layers (hyper-connections); 0: one. Whether one of them
        passes through a layer, which predicts and corrects the others (AltUp).
    low_rank, side_vocab : int
        Columns of a low-rank product beside the mixer (LAuReL); rows of the layers' own embeddings, 0: the vocabulary.
    window_heads : int
        Attention heads of windowed layers, where full layers have others.
    full_heads, full_head_dim, full_shared_kv : int, int, bool
        Key-value heads, their width, and one projection for keys and values, of full layers where windowed ones differ.
    side_width : int
        Width of the embedding that every layer has of its own.
    experts, top_k, expert_ffn, shared_ffn, shared_gate, router_bias, expert_bias, latent, idle_experts :
        Mixture of experts: see :class:`costmodels.workload.model.MoeFfn`.
    mamba_heads, mamba_head_dim, mamba_state, mamba_groups, conv_width, mamba_conv_bias, mamba_bias, mamba_norm :
        Mamba-2 mixers; ``mamba_norm``: with a norm behind the gate (Mamba-1: with norms of what it selects).
    mamba_inner, mamba_rank : int
        Channels of Mamba-1 mixers and width of the projection to their time steps, beside ``mamba_state``.
    encoder_layers : int
        Leading layers that attend to all tokens, and whose output the others attend to: an encoder and a decoder.
    encoder_norm : bool
        A norm ends the encoder.
    embeddings : int
        Norms on embeddings, where there are: one for each stack that has its own.
    position_buckets, buckets_everywhere : int, bool
        Learned biases of relative positions for each head, in the first layer of encoder and decoder or in every layer.
    blocks : tuple of (int, int)
        Key-value heads and feed-forward width of every layer, where layers differ in them; 0: without that part.
    linear_key_heads, linear_value_heads, linear_key_dim, linear_value_dim : int
        Gated delta-rule mixers.
    linear_qk_norm : bool
        Norms of queries and keys of lightning attention.
    channel_decay, gate_rank : bool, int
        Decays for each channel of the keys instead of each head; width that decays and gate are projected through.
    tied, learned_positions, max_positions, embedding_norm, head_bias, final_norm, causal, parallel :
        Ends of the model and form of the block.
    mtp_layers, mtp_ffn : int, str
        Multi-token-prediction layers; ``d`` or ``e`` says whether they are dense (empty: as the last layer).
    vocab_multiple : int
        Training frameworks pad the vocabulary to a multiple of this times tp.
    """

    layers: int
    hidden: int
    vocab: int
    family: str = "transformer"
    heads: int = 0
    kv_heads: int = 0
    head_dim: int = 0
    value_dim: int = 0
    ffn: int = 0
    gated: bool = True
    ffn_bias: bool = False
    activation_parameters: int = 0
    norm: str = "rms"
    norms_per_layer: int = 0
    qkv_bias: bool = False
    out_bias: bool = False
    qk_norm: bool = False
    qk_norm_parameters: int = 0
    output_gate: bool = False
    sinks: bool = False
    window_sinks: bool = False
    rotary: bool = True
    window: int = 0
    mixer_pattern: str = ""
    ffn_pattern: str = ""
    first_dense: int = 0
    hybrid_pattern: str = ""
    q_rank: int = 0
    kv_rank: int = 0
    rope_dim: int = 0
    shared_kv: bool = False
    out_rank: int = 0
    out_groups: int = 1
    index_heads: int = 0
    index_dim: int = 0
    index_weights: bool = True
    head_gate: bool = False
    sparse_rate: int = 0
    heavy_rate: int = 0
    chosen: int = 0
    streams: int = 0
    alternating: bool = False
    low_rank: int = 0
    side_vocab: int = 0
    window_heads: int = 0
    full_heads: int = 0
    full_head_dim: int = 0
    full_shared_kv: bool = False
    side_width: int = 0
    experts: int = 0
    top_k: int = 0
    expert_ffn: int = 0
    shared_ffn: int = 0
    shared_gate: bool = False
    router_bias: bool = False
    expert_bias: bool = False
    latent: int = 0
    idle_experts: int = 0
    mamba_heads: int = 0
    mamba_head_dim: int = 0
    mamba_state: int = 0
    mamba_groups: int = 0
    conv_width: int = 4
    mamba_conv_bias: bool = True
    mamba_bias: bool = False
    mamba_norm: bool = True
    mamba_inner: int = 0
    mamba_rank: int = 0
    linear_key_heads: int = 0
    linear_value_heads: int = 0
    linear_key_dim: int = 0
    linear_value_dim: int = 0
    linear_qk_norm: bool = False
    channel_decay: bool = False
    gate_rank: int = 0
    tied: bool = False
    learned_positions: int = 0
    max_positions: int = 0
    embedding_norm: bool = False
    head_bias: bool = False
    final_norm: bool = True
    causal: bool = True
    parallel: bool = False
    mtp_layers: int = 0
    mtp_ffn: str = ""
    vocab_multiple: int = 128
    encoder_layers: int = 0
    encoder_norm: bool = True
    embeddings: int = 1
    position_buckets: int = 0
    buckets_everywhere: bool = False
    blocks: tuple[tuple[int, int], ...] = ()

    @property
    def width_of_head(self) -> int:
        """Width of an attention head [elements]: as stated, or an even share of the model's."""
        return self.head_dim or self.hidden // self.heads

    def build(
        self,
        name: str,
        *,
        sources: tuple[str, ...] = (),
        notes: tuple[str, ...] = (),
        where: str = "",
        words: Mapping[str, str] = MappingProxyType({}),
    ) -> ModelSpec:
        """Return the model.

        Parameters
        ----------
        name : str
            Name of the model.
        sources, notes : tuple of str
            Carried into the model.
        where : str
            File (or preset) that errors name.
        words : mapping of str to str
            What the file calls a field, where that is not its name here.

        Returns
        -------
        ModelSpec
            With runs of equal layers.

        Raises
        ------
        InputError
            A field is missing, not positive, or does not go with another.
        """
        _check(self, _Place(where or name, words))
        kinds = self._unlike_kinds() or [self._kind(mixer, ffn) for mixer, ffn in self._parts()]
        kinds = self._two_stacks(kinds) if self.encoder_layers else kinds
        norm = self._norm_parameters()
        return ModelSpec(
            name=name,
            family=self.family,
            hidden=self.hidden,
            vocab=self.vocab,
            runs=tuple(LayerRun(kind=kind, count=len(list(group))) for kind, group in groupby(kinds)),
            vocab_multiple=self.vocab_multiple,
            tied_embeddings=self.tied,
            learned_positions=self.learned_positions,
            max_positions=self.max_positions,
            embedding_norm_parameters=self.embeddings * norm if self.embedding_norm else 0,
            final_norm_parameters=norm if self.final_norm else 0,
            head_bias=self.head_bias,
            side_norm_parameters=self.side_width,
            mtp_layers=self.mtp_layers,
            mtp_kind=self._mtp_kind() if self.mtp_layers else None,
            causal=self.causal,
            streams=self.streams or 1,
            alternating=self.alternating and self.streams > 1,
            side_vocab=self.side_vocab,
            stated=self._stated(),
            sources=sources,
            notes=notes,
        )

    def _stated(self) -> tuple[tuple[str, object], ...]:
        """Fields that differ from their defaults, by name."""
        given = ((one.name, getattr(self, one.name), one.default) for one in fields(self))
        return tuple((name, value) for name, value, default in given if value != default)

    def _unlike_kinds(self) -> list[LayerKind]:
        """Layers with widths of their own; none where all layers have the model's."""
        made = {
            (kv_heads, ffn): replace(self, kv_heads=kv_heads or self.heads, ffn=ffn)._kind(
                "f" if kv_heads else "", "d" if ffn else ""
            )
            for kv_heads, ffn in set(self.blocks)
        }
        named = {block: replace(kind, name=f"{kind.name} {block[0]}/{block[1]}") for block, kind in made.items()}
        return [named[block] for block in self.blocks]

    def _two_stacks(self, kinds: list[LayerKind]) -> list[LayerKind]:
        """Layers of an encoder and a decoder, with what their first and last ones have beside the others."""
        found = []
        for index, plain in enumerate(kinds):
            first, last = index in (0, self.encoder_layers), index == self.encoder_layers - 1
            places = [word for word, there in (("first", first), ("last", last)) if there]
            kind = replace(plain, name=" ".join([*places, plain.name]), ends_encoder=last)
            if self.position_buckets and (first or self.buckets_everywhere) and isinstance(kind.mixer, Attention):
                kind = replace(kind, mixer=replace(kind.mixer, position_bias=self.position_buckets * self.heads))
            if last and self.encoder_norm:
                kind = replace(kind, encoder_norm_parameters=self._norm_parameters())
            found.append(kind)
        return found

    def _parts(self) -> list[tuple[str, str]]:
        """Letters of the mixer and of the feed-forward part of every layer; empty where the layer lacks the part."""
        if self.hybrid_pattern:
            return [_SINGLE[letter] for letter in _repeat(self.hybrid_pattern, self.layers)]
        decoder = self.layers - self.encoder_layers
        stacks = "B" * self.encoder_layers + "X" * decoder if self.encoder_layers else ""
        mixers = _repeat(stacks or self.mixer_pattern or ("w" if self.window else "f"), self.layers)
        ffns = _repeat(self.ffn_pattern or ("e" if self.experts else "d"), self.layers)
        ffns = "d" * min(self.first_dense, self.layers) + ffns[self.first_dense :]
        return list(zip(mixers, ffns, strict=True))

    def _norm_parameters(self) -> int:
        return self.hidden * _NORMS[self.norm]

    def _kind(self, mixer_letter: str, ffn_letter: str) -> LayerKind:
        mixer = mixer_of(self, mixer_letter)
        ffn = self._ffn(ffn_letter)
        cross = replace(mixer, bidirectional=True) if mixer_letter == "X" and isinstance(mixer, Attention) else None
        parts = (mixer is not None) + (ffn is not None) + (cross is not None)
        count = self.norms_per_layer if self.norms_per_layer and parts >= 2 else parts
        kind = LayerKind(
            name=_kind_name(mixer_letter, ffn_letter),
            mixer=mixer,
            ffn=ffn,
            norm_parameters=count * self._norm_parameters(),
            norm_count=count,
            parallel=self.parallel,
            side_width=self.side_width,
            low_rank=self.low_rank,
            cross=cross,
        )
        inner = sum(map(inner_norm_parameters, kind.mixers))
        return replace(kind, norm_parameters=kind.norm_parameters + inner)

    def _mtp_kind(self) -> LayerKind:
        """The block of a multi-token-prediction layer: the feed-forward part of the last layer behind full attention.

        Where any layer has an indexer, it has one too; beside layers of compressed keys it has a window alone.
        """
        own = self.mtp_ffn or next(ffn for _, ffn in reversed(self._parts()) if ffn)
        mixer = "i" if self.index_heads else "f"
        return self._kind("w" if self.sparse_rate or self.heavy_rate else mixer, own)

    def _ffn(self, letter: str) -> Ffn | None:
        if letter == "d":
            learned = self.activation_parameters
            return DenseFfn(hidden=self.ffn, gated=self.gated, bias=self.ffn_bias, activation_parameters=learned)
        if letter == "e":
            return MoeFfn(
                experts=self.experts,
                top_k=self.top_k,
                hidden=self.expert_ffn or self.ffn,
                gated=self.gated,
                bias=self.expert_bias,
                router_bias=self.router_bias,
                shared_hidden=self.shared_ffn,
                shared_gate=self.shared_gate,
                latent=self.latent,
                idle_experts=self.idle_experts,
            )
        return None


_NAMES: Final = MappingProxyType({**MIXER_NAMES, "d": "dense", "e": "moe"})


_NEEDS: Final = (
    *MIXER_NEEDS,
    ("d", ("ffn",), "a layer has a dense feed-forward part"),
    ("e", ("experts", "top_k"), "a layer has experts"),
)


def _kind_name(mixer: str, ffn: str) -> str:
    return "+".join(_NAMES[letter] for letter in (mixer, ffn) if letter)


def _repeat(pattern: str, layers: int) -> str:
    return (pattern * (-(-layers // len(pattern))))[:layers]


@dataclass(frozen=True)
class _Place:
    """What errors name: a file and its own words for fields."""

    where: str
    words: Mapping[str, str]

    def word(self, name: str) -> str:
        """What the file calls a field."""
        return self.words.get(name, name)

    def at(self, name: str) -> str:
        """The file and the field."""
        return f"{self.where}: {self.word(name)}"


def _check(facts: Architecture, place: _Place) -> None:
    for name in ("layers", "hidden", "vocab", "vocab_multiple"):
        _positive(facts, place, name, "every model needs it")
    if facts.layers > MAX_LAYERS:
        raise InputError(f"{facts.layers} layers", allowed=f"1 to {MAX_LAYERS}", where=place.at("layers"))
    if facts.encoder_layers >= facts.layers:
        allowed = "fewer than all layers: a decoder attends to the encoder"
        raise InputError(f"{facts.encoder_layers} of {facts.layers}", allowed=allowed, where=place.at("encoder_layers"))
    _letters(facts, place, "mixer_pattern", MIXER_LETTERS)
    _letters(facts, place, "ffn_pattern", FFN_LETTERS)
    _letters(facts, place, "hybrid_pattern", "".join(_SINGLE))
    if facts.norm not in _NORMS:
        raise InputError(f"norm {facts.norm!r} is not known", allowed=", ".join(_NORMS), where=place.at("norm"))
    mixers = {mixer for mixer, _ in facts._parts()}
    ffns = {ffn for _, ffn in facts._parts()}
    if mixers & set(WITH_HEADS) or facts.mtp_layers:
        _check_attention(facts, place)
    _check_predictions(facts, place, ffns)
    for letter, needs, why in _NEEDS:
        if letter in mixers | ffns:
            for name in needs:
                _positive(facts, place, name, why)
    if "e" in ffns:
        _check_experts(facts, place)


def _check_predictions(facts: Architecture, place: _Place, ffns: set[str]) -> None:
    if facts.mtp_layers and not facts.mtp_ffn and not any(ffns):
        what = f"{place.word('mtp_layers')} {facts.mtp_layers}, but no layer has a feed-forward part to predict with"
        raise InputError(what, allowed=f"0, or {place.word('mtp_ffn')} d or e", where=place.at("mtp_layers"))


def _check_attention(facts: Architecture, place: _Place) -> None:
    word = place.word
    _positive(facts, place, "heads", "a layer has attention")
    if not facts.head_dim and facts.hidden % facts.heads:
        raise InputError(
            f"{word('hidden')} {facts.hidden} is not a multiple of {word('heads')} {facts.heads}",
            allowed=f"a multiple, or {word('head_dim')} stated",
            where=place.at("heads"),
        )
    if facts.kv_heads and facts.heads % facts.kv_heads:
        raise InputError(
            f"{word('heads')} {facts.heads} is not a multiple of {word('kv_heads')} {facts.kv_heads}",
            allowed=f"a divisor of {word('heads')}",
            where=place.at("kv_heads"),
        )


def _check_experts(facts: Architecture, place: _Place) -> None:
    if not facts.expert_ffn:
        _positive(facts, place, "ffn", f"a layer has experts and {place.word('expert_ffn')} is not stated")
    if facts.top_k > facts.experts:
        raise InputError(
            f"{place.word('top_k')} {facts.top_k} exceeds {place.word('experts')} {facts.experts}",
            allowed=f"1 to {place.word('experts')}",
            where=place.at("top_k"),
        )


def _positive(facts: Architecture, place: _Place, name: str, why: str) -> None:
    value = getattr(facts, name)
    if value <= 0:
        raise InputError(
            f"{place.word(name)} is {value}; {why}", allowed="a positive whole number", where=place.at(name)
        )


def _letters(facts: Architecture, place: _Place, name: str, letters: str) -> None:
    value: str = getattr(facts, name)
    wrong = sorted(set(value) - set(letters))
    if wrong:
        raise InputError(
            f"{place.word(name)} {value!r} has the letter {wrong[0]!r}", allowed=" ".join(letters), where=place.at(name)
        )

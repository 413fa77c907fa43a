"""Vision towers of Hugging Face configurations: what ``vision_config`` says beside a language model."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from math import prod
from types import MappingProxyType
from typing import Final

from costmodels.workload.architecture import MAX_LAYERS, Architecture
from costmodels.workload.fields import Fields
from costmodels.workload.model import ModelSpec, Tower, TowerProduct
from hardware.package_table import package_table

_IMAGE_SIDE: Final = 1024  # pixels of an image where the tower takes any size
_CHANNELS: Final = 3
_MOON_POSITIONS: Final = 64  # rows and columns of MoonViT's table, which is interpolated


@dataclass(frozen=True, kw_only=True)
class _Sources:
    """A configuration: all of it, its ``vision_config``, and the width of its language model."""

    whole: Fields
    vision: Fields
    text_width: int

    def size(self, *names: str) -> int:
        """A size of the vision configuration."""
        return self.vision.whole(*names, least=1)

    def layers(self, *names: str) -> int:
        """How many layers the tower has."""
        found = self.size(*names)
        if found > MAX_LAYERS:
            raise self.vision.wrong(next(name for name in names if self.vision.has(name)), found, f"1 to {MAX_LAYERS}")
        return found

    def out_width(self, name: str) -> int:
        """Width of what the tower hands on: as stated, else the language model's."""
        return self.vision.whole(name, default=self.text_width, least=1)

    def side(self, name: str) -> int:
        """A side of an image or patch, where both may be stated."""
        value = self.vision.values.get(name)
        first = value[0] if isinstance(value, list | tuple) and value else value
        return Fields({name: first}, self.vision.where).whole(name, least=1)


def tower_of(config: Fields, model_type: str, text_width: int) -> Tower | None:
    """Read the vision tower of a configuration.

    Parameters
    ----------
    config : Fields
        The whole configuration, with a ``vision_config``.
    model_type : str
        That of the whole configuration.
    text_width : int
        Width of its language model.

    Returns
    -------
    Tower or None
        None where no form of the tower is known here.

    Raises
    ------
    InputError
        A field of the tower is missing or wrong.
    """
    if not config.has("vision_config"):
        return None
    vision = config.table("vision_config")
    kind = vision.text("model_type", default="")
    read = TOWERS.get(model_type) or TOWERS.get(f"{model_type}:{kind}")
    if read is None:
        return None
    defaults = _defaults()
    known = defaults.get(model_type) or defaults.get(kind) or {}
    return read(_Sources(whole=config, vision=Fields({**known, **vision.values}, vision.where), text_width=text_width))


@cache
def _defaults() -> Mapping[str, Mapping[str, object]]:
    """Defaults of the classes of towers, by the type of the whole configuration or that of the tower."""
    entries = package_table("costmodels.workload.huggingface", "vision_defaults.toml")["class"]
    return MappingProxyType({name: entry["fields"] for entry in entries for name in entry["model_types"]})


def _trunk(source: _Sources, facts: Architecture) -> ModelSpec:
    """The layers of a tower, whose patches all attend to each other."""
    built = replace(facts, vocab=1, causal=False).build("tower", where=source.vision.where)
    return replace(built, vocab=0, final_norm_parameters=0)


def _sequence(name: str, first: int, *widths: int, biases: bool = True) -> tuple[TowerProduct, ...]:
    """Products behind one another, every second one by rows."""
    found, k = [], first
    for number, n in enumerate(widths):
        found.append(
            TowerProduct(name=f"{name}_{number + 1}", k=k, n=n, further_parameters=n * biases, by_rows=bool(number % 2))
        )
        k = n
    return tuple(found)


def _with_parameters(products: tuple[TowerProduct, ...], number: int) -> tuple[TowerProduct, ...]:
    """Products of which the first has further parameters."""
    first = products[0]
    return (replace(first, further_parameters=first.further_parameters + number), *products[1:])


def _patches(width: int, values: int, *, bias: bool, beside: int = 0) -> tuple[TowerProduct, ...]:
    return (TowerProduct(name="patches", k=values, n=width, further_parameters=width * bias + beside),)


def _free_patches(patch: int, merged: int) -> int:
    """Patches of an image of 1024 x 1024 pixels, as many as make whole tokens of ``merged`` x ``merged``."""
    return int((_IMAGE_SIDE // (patch * merged) * merged) ** 2)


def _qwen(source: _Sources, trunk: ModelSpec, norm: int, *, patch_bias: bool, positions: int = 0) -> Tower:
    """A tower that merges squares of patches by two products behind a norm (Qwen-VL)."""
    side, merged = source.side("patch_size"), source.size("spatial_merge_size")
    width, out = trunk.hidden, source.out_width("out_hidden_size")
    values = source.size("in_channels", "in_chans") * source.side("temporal_patch_size") * side**2
    wide = width * merged**2
    products = _with_parameters(_sequence("merger", wide, wide, out), norm * width)
    for layer in source.vision.wholes("deepstack_visual_indexes"):
        products += _with_parameters(_sequence(f"merger_of_{layer}", wide, wide, out), norm * wide)
    return Tower(
        trunk=trunk,
        patches=_patches(width, values, bias=patch_bias, beside=positions * width),
        projector=products,
        merge=merged**2,
        image_patches=_free_patches(side, merged),
        patch_side=source.side("patch_size"),
        megatron_modules=positions > 0,
    )


def _plain(source: _Sources, *, heads: tuple[str, ...] = ("num_attention_heads",)) -> Architecture:
    """Layers as ViT has them: norms with biases, biases everywhere, a feed-forward part that is not gated."""
    return Architecture(
        layers=source.layers("num_hidden_layers", "depth"),
        hidden=source.size("hidden_size"),
        vocab=1,
        heads=source.size(*heads),
        ffn=source.size("intermediate_size"),
        gated=False,
        norm="layer",
        qkv_bias=True,
        out_bias=True,
        ffn_bias=True,
        rotary=False,
    )


def _qwen2_vl(source: _Sources) -> Tower:
    width, out = source.size("embed_dim"), source.out_width("hidden_size")
    own = {
        "hidden_size": width,
        "out_hidden_size": out,
        "intermediate_size": int(width * source.vision.number("mlp_ratio")),
    }
    source = replace(source, vision=source.vision.changed(**own))
    facts = _plain(source, heads=("num_heads",))
    return _qwen(source, _trunk(source, replace(facts, rotary=True)), 2, patch_bias=False)


def _qwen25_vl(source: _Sources) -> Tower:
    facts = replace(_plain(source, heads=("num_heads",)), gated=True, norm="rms", rotary=True)
    full = source.vision.wholes("fullatt_block_indexes")
    pattern = "".join("f" if layer in full else "w" for layer in range(facts.layers))
    window = (source.size("window_size") // source.side("patch_size")) ** 2
    return _qwen(source, _trunk(source, replace(facts, window=window, mixer_pattern=pattern)), 1, patch_bias=False)


def _qwen3_vl(source: _Sources) -> Tower:
    trunk = _trunk(source, replace(_plain(source, heads=("num_heads",)), rotary=True))
    return _qwen(source, trunk, 2, patch_bias=True, positions=source.size("num_position_embeddings"))


def _glm4v(source: _Sources) -> Tower:
    """GLM-4V: products of the feed-forward parts as wide as the language model, and a gated one behind the merger."""
    out, ffn = source.out_width("out_hidden_size"), source.size("intermediate_size")
    bias = source.vision.flag("attention_bias", default=False)
    plain = _plain(source, heads=("num_heads",))
    facts = replace(plain, gated=True, norm="rms", ffn=out, ffn_bias=False, out_bias=False, qkv_bias=bias, rotary=True)
    trunk, side, merged = _trunk(source, facts), source.side("patch_size"), source.size("spatial_merge_size")
    width = trunk.hidden
    positions = (source.side("image_size") // side) ** 2
    downsample = TowerProduct(name="downsample", k=width * merged**2, n=out, further_parameters=out)
    gate = TowerProduct(name="merger_2", k=out, n=2 * ffn)
    return Tower(
        trunk=trunk,
        patches=_patches(
            width,
            source.size("in_channels") * source.side("temporal_patch_size") * side**2,
            bias=True,
            beside=(positions + 2) * width,
        ),
        projector=(
            downsample,
            TowerProduct(name="merger_1", k=out, n=out, further_parameters=2 * out),
            gate,
            TowerProduct(name="merger_3", k=ffn, n=out, by_rows=True),
        ),
        merge=merged**2,
        image_patches=_free_patches(side, merged),
        patch_side=source.side("patch_size"),
    )


def _tiled(source: _Sources, trunk: ModelSpec, patches: tuple[TowerProduct, ...], merge: int, tokens: int = 0) -> Tower:
    """A tower for images of one size, without its projector."""
    number = (source.side("image_size") // source.side("patch_size")) ** 2
    return Tower(
        trunk=trunk,
        patches=patches,
        projector=(),
        merge=max(1, number // tokens) if tokens else merge,
        image_patches=number,
        patch_side=source.side("patch_size"),
        fixed=True,
    )


def _internvl(source: _Sources) -> Tower:
    """InternVL: InternViT, whose layers scale their outputs, and four patches a token."""
    vision = source.vision
    qk_norm = vision.flag("use_qk_norm", "qk_normalization", default=False)
    facts = replace(
        _plain(source),
        qkv_bias=vision.flag("attention_bias", "qkv_bias", default=False),
        norm="rms" if vision.text("norm_type", default="layer_norm") == "rms_norm" else "layer",
        qk_norm=qk_norm,
        qk_norm_parameters=2 * source.size("hidden_size") if qk_norm else 0,
    )
    trunk = _trunk(source, facts)
    width = trunk.hidden
    number = (source.side("image_size") // source.side("patch_size")) ** 2
    scales = 2 * width * trunk.layers
    patches = _patches(width, _values(source), bias=True, beside=(number + 2) * width + scales)
    merge = _shuffled(source.whole.number("downsample_ratio", default=0.5))
    products = _sequence("projector", merge * width, source.text_width, source.text_width)
    return replace(_tiled(source, trunk, patches, merge), projector=_with_parameters(products, 2 * merge * width))


def _shuffled(ratio: float) -> int:
    """Patches that become one where rows and columns shrink by a ratio; at least one."""
    return max(1, round(1.0 / max(ratio, 1.0 / _IMAGE_SIDE)) ** 2)


def _values(source: _Sources) -> int:
    """Numbers of one patch of a still image."""
    channels = source.vision.whole("num_channels", "in_channels", default=_CHANNELS, least=1)
    return int(channels * source.side("patch_size") ** 2)


def _siglip(source: _Sources, *, tokens: int = 0) -> Tower:
    """SigLIP, with the head that pools its output where the class has one, which no image passes here."""
    trunk = _trunk(source, _plain(source))
    width, ffn = trunk.hidden, source.size("intermediate_size")
    number = (source.side("image_size") // source.side("patch_size")) ** 2
    head = source.vision.flag("vision_use_head", default=True)
    pooling = head * (4 * width**2 + 4 * width + 3 * width + 2 * width * ffn + ffn + width)
    patches = _patches(width, _values(source), bias=True, beside=(number + 2) * width + pooling)
    return _tiled(source, trunk, patches, 1, tokens)


def _clip(source: _Sources) -> Tower:
    trunk = _trunk(source, _plain(source))
    width, number = trunk.hidden, (source.side("image_size") // source.side("patch_size")) ** 2
    return _tiled(source, trunk, _patches(width, _values(source), bias=False, beside=(number + 6) * width), 1)


def _pixtral(source: _Sources) -> Tower:
    facts = _plain(source)
    own = replace(facts, gated=True, norm="rms", qkv_bias=False, out_bias=False, ffn_bias=False, rotary=True)
    trunk = _trunk(source, own)
    side = source.side("patch_size")
    return Tower(
        trunk=trunk,
        patches=_patches(trunk.hidden, _values(source), bias=False, beside=trunk.hidden),
        projector=(),
        merge=1,
        image_patches=_free_patches(side, 1),
        patch_side=source.side("patch_size"),
    )


def _gemma3(source: _Sources) -> Tower:
    tower = _siglip(source, tokens=source.whole.whole("mm_tokens_per_image", default=256, least=1))
    width = tower.trunk.hidden
    product = TowerProduct(name="projector", k=width, n=source.text_width, further_parameters=width)
    return replace(tower, projector=(product,))


def _idefics3(source: _Sources) -> Tower:
    """Idefics3 and SmolVLM: SigLIP without its head, and one product for a square of patches."""
    found = _siglip(replace(source, vision=source.vision.changed(vision_use_head=False)))
    merge = source.whole.whole("scale_factor", default=2, least=1) ** 2
    product = TowerProduct(name="projector", k=found.trunk.hidden * merge, n=source.text_width)
    return replace(found, projector=(product,), merge=merge)


def _paligemma(source: _Sources) -> Tower:
    tower = _siglip(source)
    return replace(tower, projector=_sequence("projector", tower.trunk.hidden, source.text_width))


def _llava(tower: Callable[[_Sources], Tower], *, beside: bool = False) -> Callable[[_Sources], Tower]:
    """LLaVA: two products for every patch, with a token that ends rows of tiles where images are cut into them."""

    def read(source: _Sources) -> Tower:
        found = tower(source)
        bias = source.whole.flag("multimodal_projector_bias", default=True)
        width = found.trunk.hidden
        products = _sequence("projector", width, source.text_width, source.text_width, biases=bias)
        return replace(found, projector=_with_parameters(products, source.text_width * beside))

    return read


def _mistral3(source: _Sources) -> Tower:
    found = _pixtral(source)
    merged = source.whole.whole("spatial_merge_size", default=2, least=1)
    width, bias = found.trunk.hidden, source.whole.flag("multimodal_projector_bias", default=False)
    merger = TowerProduct(name="merger", k=width * merged**2, n=width, further_parameters=width)
    products = _sequence("projector", width, source.text_width, source.text_width, biases=bias)
    patches = _free_patches(source.side("patch_size"), merged)
    return replace(found, projector=(merger, *products), merge=merged**2, image_patches=patches)


def _llama4(source: _Sources) -> Tower:
    """Llama 4: squares of patches through an adapter of two products, and one to the language model's width."""
    trunk = _trunk(source, replace(_plain(source), rotary=True))
    width, number = trunk.hidden, (source.side("image_size") // source.side("patch_size")) ** 2
    patches = _patches(width, _values(source), bias=False, beside=(number + 6) * width)
    merge = _shuffled(source.vision.number("pixel_shuffle_ratio"))
    inner, out = source.size("projector_input_dim"), source.size("projector_output_dim")
    adapter = _sequence("adapter", source.size("intermediate_size"), inner, out, biases=False)
    last = TowerProduct(name="projector", k=source.size("vision_output_dim"), n=source.text_width)
    return replace(_tiled(source, trunk, patches, merge), projector=(*adapter, last))


def _gemma4(source: _Sources) -> Tower:
    """Gemma 4: pools squares of patches, of which as many as make the stated tokens of an image."""
    plain = replace(_plain(source), gated=True, norm="rms", qkv_bias=False, out_bias=False, ffn_bias=False)
    heads, head_dim = source.size("num_key_value_heads"), source.size("head_dim")
    facts = replace(plain, kv_heads=heads, head_dim=head_dim, norms_per_layer=4, qk_norm=True, rotary=True)
    trunk = _trunk(source, facts)
    width, merge = trunk.hidden, source.size("pooling_kernel_size") ** 2
    positions = 2 * source.size("position_embedding_size") * width
    return Tower(
        trunk=trunk,
        patches=_patches(width, _values(source), bias=False, beside=positions),
        projector=(TowerProduct(name="projector", k=width, n=source.text_width),),
        merge=merge,
        image_patches=merge * source.whole.whole("vision_soft_tokens_per_image", default=280, least=1),
        patch_side=source.side("patch_size"),
    )


def _moon(source: _Sources) -> Tower:
    """MoonViT of Kimi-VL and Kimi K2.5: layers of ViT with rotary positions, four patches a token."""
    words = ("hidden_size", "num_hidden_layers", "intermediate_size", "num_attention_heads")
    own = {word: source.vision.values.get(f"vt_{word}", source.vision.values.get(word)) for word in words}
    source = replace(source, vision=source.vision.changed(**own))
    trunk = _trunk(source, replace(_plain(source), rotary=True))
    width, side = trunk.hidden, source.side("patch_size")
    rows, columns = (
        source.vision.whole(f"init_pos_emb_{name}", default=_MOON_POSITIONS) for name in ("height", "width")
    )
    merge = prod(source.vision.wholes("merge_kernel_size") or (2, 2))
    products = _sequence("projector", merge * width, merge * width, source.text_width)
    return Tower(
        trunk=trunk,
        patches=_patches(width, _values(source), bias=True, beside=(rows * columns + 2) * width),
        projector=_with_parameters(products, 2 * width),
        merge=merge,
        image_patches=_free_patches(side, 2),
        patch_side=source.side("patch_size"),
    )


TOWERS: Final[Mapping[str, Callable[[_Sources], Tower]]] = MappingProxyType(
    {
        "gemma3": _gemma3,
        "gemma4": _gemma4,
        "glm46v": _glm4v,
        "glm4v": _glm4v,
        "glm4v_moe": _glm4v,
        "idefics3": _idefics3,
        "internvl": _internvl,
        "internvl_chat": _internvl,
        "kimi_k25": _moon,
        "kimi_vl": _moon,
        "llama4": _llama4,
        "llava:clip_vision_model": _llava(_clip),
        "llava:pixtral": _llava(_pixtral),
        "llava:siglip_vision_model": _llava(_siglip),
        "llava_next:clip_vision_model": _llava(_clip, beside=True),
        "llava_onevision:siglip_vision_model": _llava(_siglip, beside=True),
        "mistral3:pixtral": _mistral3,
        "paligemma": _paligemma,
        "qwen2_5_vl": _qwen25_vl,
        "qwen2_vl": _qwen2_vl,
        "qwen3_5": _qwen3_vl,
        "qwen3_5_moe": _qwen3_vl,
        "qwen3_vl": _qwen3_vl,
        "qwen3_vl_moe": _qwen3_vl,
        "smolvlm": _idefics3,
    }
)
"""Type of the whole configuration, with that of its tower where it may have several, to what reads the tower."""

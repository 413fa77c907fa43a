"""Hugging Face configurations of an encoder with a decoder that attends to it: T5 and its kind, BART and mBART.

Both stacks see as many tokens as the sequence that is planned for.
"""

from dataclasses import replace

from costmodels.workload.architecture import Architecture
from costmodels.workload.fields import Fields


def t5(config: Fields) -> Architecture:
    """T5, mT5 and UMT5 (the kinds of Flan-T5 and UL2): biases of relative positions, norms without biases."""
    encoder = config.whole("num_layers", least=1)
    activation = config.text("feed_forward_proj", default="relu")
    return Architecture(
        family=config.text("model_type"),
        layers=encoder + config.whole("num_decoder_layers", default=encoder, least=1),
        encoder_layers=encoder,
        hidden=config.whole("d_model", "hidden_size", least=1),
        vocab=config.whole("vocab_size", least=1),
        heads=config.whole("num_heads", least=1),
        head_dim=config.whole("d_kv", default=64, least=1),
        ffn=config.whole("d_ff", least=1),
        gated=activation.startswith("gated-"),
        rotary=False,
        position_buckets=config.whole("relative_attention_num_buckets", default=32, least=1),
        buckets_everywhere=config.text("model_type") == "umt5",
        tied=config.flag("tie_word_embeddings", default=True),
    )


def switch(config: Fields) -> Architecture:
    """Switch Transformers: T5 with experts in every so many layers, of which a token meets one."""
    base = t5(config)
    stacks = (("encoder", base.encoder_layers), ("decoder", base.layers - base.encoder_layers))
    return replace(
        base,
        gated=False,
        ffn_pattern="".join(_sparse(config, stack, layers) for stack, layers in stacks),
        experts=config.whole("num_experts", default=8, least=1),
        top_k=1,
        router_bias=config.flag("router_bias", default=False),
    )


def _sparse(config: Fields, stack: str, layers: int) -> str:
    """Letters of a stack: experts in the second layer of every period, as the class counts them."""
    number = config.whole(f"num_sparse_{stack}_layers", default=3, most=layers)
    period = layers // number if number else layers
    return "".join("e" if index % period == 1 or period == 1 else "d" for index in range(layers))


def longt5(config: Fields) -> Architecture:
    """LongT5 with local attention: a block of the encoder attends to itself and to both of its neighbours."""
    kind = config.text("encoder_attention_type", default="local")
    if kind != "local":
        allowed = "local: summaries of blocks that all tokens attend to are not modelled"
        raise config.wrong("encoder_attention_type", kind, allowed)
    radius = config.whole("local_radius", default=127, least=1)
    return replace(t5(config), window=3 * (radius + 1))


def bart(config: Fields) -> Architecture:
    """BART, and mBART with norms at the ends of its stacks: learned positions, biases, a norm on each embedding."""
    heads, ffn = (_same(config, name) for name in ("attention_heads", "ffn_dim"))
    positions = config.whole("max_position_embeddings", least=1)
    encoder = config.whole("encoder_layers", least=1)
    norms = config.text("model_type") == "mbart"
    return Architecture(
        family=config.text("model_type"),
        layers=encoder + config.whole("decoder_layers", default=encoder, least=1),
        encoder_layers=encoder,
        encoder_norm=norms,
        final_norm=norms,
        hidden=config.whole("d_model", "hidden_size", least=1),
        vocab=config.whole("vocab_size", least=1),
        heads=heads,
        ffn=ffn,
        gated=False,
        norm="layer",
        ffn_bias=True,
        qkv_bias=True,
        out_bias=True,
        rotary=False,
        learned_positions=2 * (positions + 2),  # a table for each stack, with two rows before the first position
        max_positions=positions,
        embedding_norm=True,
        embeddings=2,
        tied=config.flag("tie_word_embeddings", default=True),
    )


def _same(config: Fields, name: str) -> int:
    """Return a size that encoder and decoder have in common."""
    encoder, decoder = (config.whole(f"{stack}_{name}", least=1) for stack in ("encoder", "decoder"))
    if encoder != decoder:
        raise config.wrong(f"decoder_{name}", decoder, f"encoder_{name} = {encoder}: unlike stacks are not modelled")
    return encoder

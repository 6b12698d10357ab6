"""The arithmetic knows the parameters that the model really has."""

from dataclasses import replace

import pytest

from meshwright.spec.layers import layer_map
from meshwright.spec.layout import Layout
from meshwright.spec.model import ModelSpec
from meshwright.spec.parameters import parameter_counts, parameter_shapes, stage_counts, total
from meshwright.spec.presets import preset

torch = pytest.importorskip("torch")

TINY = replace(preset("llama-2m"), vocab_size=503)
SPECS = {
    "plain": TINY,
    "tied": replace(TINY, tie_word_embeddings=True),
    "qk_norm": replace(TINY, qk_norm=True),
    "qwen2": replace(TINY, attention_bias=True),
    "all biases": replace(TINY, attention_bias=True, attention_output_bias=True, mlp_bias=True),
    "llama3.2-1b": preset("llama3.2-1b"),
}


@pytest.mark.parametrize("name", SPECS)
def test_names_and_shapes_of_the_decoder(name: str) -> None:
    from meshwright.model.decoder import Decoder

    with torch.device("meta"):
        model = Decoder(SPECS[name], seq_length=64)
    shapes = {key: tuple(value.shape) for key, value in model.named_parameters()}
    assert shapes == parameter_shapes(SPECS[name], padded=True)


@pytest.mark.parametrize("spec", [TINY, SPECS["tied"]], ids=["untied", "tied"])
def test_b02_stages_of_the_decoder_sum_to_the_model(spec: ModelSpec) -> None:
    from meshwright.model.decoder import Decoder

    stages = layer_map(4, Layout(pipeline_stage=3))
    held = []
    for stage, layers in enumerate(stages):
        with torch.device("meta"):
            model = Decoder(spec, seq_length=64)
        model.keep_stage(layers, first=stage == 0, last=stage == 2)
        held.append(sum(value.numel() for value in model.parameters()))
    copies = spec.padded_vocab_size * spec.hidden_size if spec.tie_word_embeddings else 0
    owned = stage_counts(parameter_counts(spec, padded=True), stages)
    assert held == [*owned[:-1], owned[-1] + copies]
    assert sum(held) - copies == total(spec, padded=True)

"""Same seed, same run: weights, first loss and loss curve do not depend on the layout (B-12)."""

import hashlib

import pytest
import torch

from meshwright.model.decoder import Decoder
from meshwright.model.init import init_weights
from meshwright.spec.layout import Layout
from meshwright.train.step import train_step
from parity import SEQ_LENGTH, TINY, layout_run, local_batch, make_state, plain_run, train_spec, whole
from ranks import run_ranks

STEPS = 20
LAYOUTS = {
    "one": Layout(),
    "dp2": Layout(data_parallel=2),
    "fsdp2": Layout(data_parallel=2, zero_stage=3),
    "tp2": Layout(model_parallel=2),
    "pp2": Layout(pipeline_stage=2),
    "pp2_fsdp2": Layout(pipeline_stage=2, data_parallel=2, zero_stage=3),
    "tp2_fsdp2": Layout(model_parallel=2, data_parallel=2, zero_stage=3, use_seq_parallel=True),
}


def fingerprints(parameters):
    return {
        name: hashlib.sha256(whole(parameter).contiguous().numpy().tobytes()).hexdigest()
        for name, parameter in parameters.items()
    }


def run(layout):
    train = train_spec(layout)
    state = make_state(TINY, layout, train)
    start = fingerprints(state.optimizer.parameters)
    losses = [
        train_step(state, local_batch(state, step), train.optimizer.learning_rate).loss.item() for step in range(STEPS)
    ]
    return start, losses


@pytest.fixture(scope="module")
def plain():
    """Weights and losses of a plain loop on one process."""
    model = Decoder(TINY, seq_length=SEQ_LENGTH)
    init_weights(model, TINY, train_spec(Layout()).seed)
    losses = run_ranks(plain_run, 1, TINY, steps=STEPS, train=train_spec(Layout()))[0].losses
    return fingerprints(dict(model.named_parameters())), losses


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS.keys())
def test_b12_same_weights_same_losses(layout, plain):
    weights, losses = plain
    results = run_ranks(run, layout.world_size, layout)
    held = {}
    for start, _ in results:
        assert start.items() <= weights.items()
        held |= start
    assert held == weights
    for _, found in results:
        assert found[0] == pytest.approx(losses[0], abs=1e-5)
        assert found == pytest.approx(losses, abs=1e-4)


def test_b04_padded_vocabulary_trains_to_the_same_loss_at_tp2():
    """503 ids in 512 rows: at tensor degree 2 the padding lies on the second rank only."""
    one, two = Layout(), Layout(model_parallel=2)
    (whole_vocabulary,) = run_ranks(layout_run, 1, TINY, one, train_spec(one), 50)
    for split in run_ranks(layout_run, 2, TINY, two, train_spec(two), 50):
        assert split.losses == pytest.approx(whole_vocabulary.losses, abs=1e-4)
        assert torch.count_nonzero(split.weights["embedding.weight"][503:]) == 0
        assert torch.count_nonzero(split.weights["head.weight"][503:]) == 0

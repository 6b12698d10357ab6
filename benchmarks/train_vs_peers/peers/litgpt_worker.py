"""Train a Llama with litgpt.pretrain.setup, its own entry point, and report its step times.

Only saving is left out (litgpt always saves at the end). litgpt compiles its model always; run.py switches
torch.compile off by TORCH_COMPILE_DISABLE unless compiled runs are compared.
"""

import csv
import itertools
from pathlib import Path

import litgpt.pretrain
from job import Job, Samples, read_job, write_result
from litgpt import Config
from litgpt.args import EvalArgs, TrainArgs
from litgpt.data import DataModule
from torch.utils.data import DataLoader

PRECISION = {"fp32": "32-true", "bf16-autocast": "bf16-mixed", "bf16-true": "bf16-true"}


class Tokens(DataModule):
    def __init__(self, job: Job) -> None:
        super().__init__()
        self.job = job
        # litgpt asks for one batch more than it trains on before it stops.
        self.training = Samples(job, job.samples + job.micro_batch_size)

    def connect(self, tokenizer=None, batch_size=1, max_seq_length=None, **kwargs) -> None:
        pass

    def train_dataloader(self) -> DataLoader:
        return DataLoader(self.training, batch_size=self.job.micro_batch_size)

    def val_dataloader(self) -> DataLoader:
        return DataLoader(Samples(self.job, 1), batch_size=1)


def build_config(job: Job) -> Config:
    return Config(
        name="benchmark",
        block_size=job.seq_length,
        n_layer=job.num_layers,
        n_embd=job.hidden_size,
        n_head=job.num_heads,
        vocab_size=job.vocab_size,
        padded_vocab_size=job.vocab_size,
        intermediate_size=job.intermediate_size,
        norm_class_name="RMSNorm",
        norm_eps=1e-5,
        mlp_class_name="LLaMAMLP",
        parallel_residual=False,
        rotary_percentage=1.0,
        bias=False,
    )


def keep_the_model(kept: list):
    """Record the model where litgpt would save it."""

    def save_checkpoint(fabric, state, tokenizer_dir, checkpoint_file) -> None:
        kept.append(state["model"])

    return save_checkpoint


def main() -> None:
    job = read_job()
    data = Tokens(job)
    kept: list = []
    litgpt.pretrain.save_checkpoint = keep_the_model(kept)
    litgpt.pretrain.setup(
        model_name="benchmark",
        model_config=build_config(job),
        out_dir=Path(job.folder),
        precision=PRECISION[job.precision],
        data=data,
        train=TrainArgs(
            save_interval=None,
            log_interval=1,
            global_batch_size=job.micro_batch_size,
            micro_batch_size=job.micro_batch_size,
            max_tokens=job.samples * job.seq_length,
            max_norm=job.grad_clip,
            min_lr=job.learning_rate,
            lr_warmup_steps=0,
            tie_embeddings=job.tie_word_embeddings,
        ),
        eval=EvalArgs(interval=job.steps + 1, max_iters=1, final_validation=False),
        optimizer={
            "class_path": "torch.optim.AdamW",
            "init_args": {
                "lr": job.learning_rate,
                "betas": list(job.betas),
                "weight_decay": job.weight_decay,
            },
        },
        devices=1,
        logger_name="csv",
        seed=1,
    )
    starts = data.training.times[:: job.micro_batch_size]
    seconds = [b - a for a, b in itertools.pairwise(starts)]
    write_result(job, seconds, losses(Path(job.folder)), kept[0])


def losses(folder: Path) -> list[float]:
    [path] = folder.rglob("metrics.csv")
    with path.open() as stream:
        return [float(row["loss"]) for row in csv.DictReader(stream) if row.get("loss")]


if __name__ == "__main__":
    main()

"""Train a Llama with transformers.Trainer and report its step times."""

import itertools
import time

import torch
from job import Job, Samples, read_job, write_result
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments


class Clock(TrainerCallback):
    def __init__(self) -> None:
        self.times: list[float] = []

    def on_train_begin(self, args, state, control, **kwargs) -> None:
        self.times.append(time.perf_counter())

    def on_step_end(self, args, state, control, **kwargs) -> None:
        self.times.append(time.perf_counter())


def collate(samples: list[torch.Tensor]) -> dict[str, torch.Tensor]:
    # The model shifts labels itself, so that it sees the same seq_length positions as the other tools.
    ids = torch.stack(samples)[:, :-1].contiguous()
    return {"input_ids": ids, "labels": ids}


def build_model(job: Job) -> LlamaForCausalLM:
    config = LlamaConfig(
        vocab_size=job.vocab_size,
        hidden_size=job.hidden_size,
        intermediate_size=job.intermediate_size,
        num_hidden_layers=job.num_layers,
        num_attention_heads=job.num_heads,
        num_key_value_heads=job.num_heads,
        max_position_embeddings=job.seq_length,
        rms_norm_eps=1e-5,
        tie_word_embeddings=job.tie_word_embeddings,
        use_cache=False,
        attn_implementation="sdpa",
    )
    return LlamaForCausalLM(config)


def main() -> None:
    job = read_job()
    torch.manual_seed(1)
    model = build_model(job)
    if job.precision == "bf16-true":
        model = model.to(torch.bfloat16)
    arguments = TrainingArguments(
        output_dir=job.folder,
        use_cpu=True,
        bf16=job.precision == "bf16-autocast",
        per_device_train_batch_size=job.micro_batch_size,
        max_steps=job.steps,
        learning_rate=job.learning_rate,
        weight_decay=job.weight_decay,
        adam_beta1=job.betas[0],
        adam_beta2=job.betas[1],
        max_grad_norm=job.grad_clip,
        lr_scheduler_type="constant",
        torch_compile=job.compile,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        logging_steps=1,
        dataloader_pin_memory=False,
        remove_unused_columns=False,
    )
    clock = Clock()
    trainer = Trainer(
        model=model,
        args=arguments,
        train_dataset=Samples(job, job.samples),
        data_collator=collate,
        callbacks=[clock],
    )
    trainer.train()
    losses = [float(entry["loss"]) for entry in trainer.state.log_history if "loss" in entry]
    seconds = [b - a for a, b in itertools.pairwise(clock.times)]
    write_result(job, seconds, losses, model)


if __name__ == "__main__":
    main()

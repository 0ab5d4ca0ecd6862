"""Train with the Trainer of Hugging Face's Transformers, as its documentation does."""

import gc
import json
import os
import sys

import torch
import torch.distributed as dist
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    HfArgumentParser,
    Trainer,
    TrainingArguments,
)


def train(options: TrainingArguments) -> dict[str, object]:
    """Train a tiny GPT-2, made from a configuration, to count."""
    tiny = GPT2Config(
        n_layer=1,
        n_head=2,
        n_embd=16,
        n_positions=8,
        vocab_size=32,
        bos_token_id=None,
        eos_token_id=None,
    )
    data = []
    for first in range(64):
        counted = torch.arange(first, first + 8) % tiny.vocab_size
        data.append({"input_ids": counted, "labels": counted})
    trainer = Trainer(GPT2LMHeadModel(tiny), options, train_dataset=data)
    trainer.train()

    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    samples = trainer.state.global_step * options.per_device_train_batch_size
    return {
        "rank": options.process_index,
        "world_size": options.world_size,
        "local_rank": options.local_process_index,
        "mask": os.environ.get("CUDA_VISIBLE_DEVICES"),
        "device": str(trainer.model.device),
        "losses": [losses[0], losses[-1]],
        "samples": samples / options.num_train_epochs,
        "weights": sum(p.double().sum().item() for p in trainer.model.parameters()),
    }


def main() -> None:
    """Train as the command line says."""
    [options] = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()
    sys.stdout.write(json.dumps(train(options)) + "\n")
    # With gloo a model must not outlive its group: pytorch/pytorch issue 56297.
    gc.collect()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

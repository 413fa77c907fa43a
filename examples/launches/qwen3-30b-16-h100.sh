#!/usr/bin/env bash
# Qwen3-30B-A3B on 16 H100 as Megatron-Bridge 0.6.2 ships it, its settings written out:
# qwen3_30b_a3b_pretrain_16gpu_h100_bf16_config.
torchrun --nnodes 2 --nproc-per-node 8 scripts/training/run_recipe.py --mode pretrain \
    --recipe qwen3_30b_a3b_pretrain_16gpu_h100_bf16_config \
    model.tensor_model_parallel_size=1 model.pipeline_model_parallel_size=1 model.context_parallel_size=1 \
    model.expert_model_parallel_size=16 model.expert_tensor_parallel_size=1 model.sequence_parallel=false \
    model.seq_length=4096 model.moe_token_dispatcher_type=flex train.micro_batch_size=1 train.global_batch_size=1024 \
    ddp.use_distributed_optimizer=true mixed_precision.grad_reduce_in_fp32=false

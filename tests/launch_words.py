"""The words of a small launch of Megatron-LM that several tests begin with."""

SIZES = "--num-layers 8 --hidden-size 1024 --num-attention-heads 16 --seq-length 2048 --max-position-embeddings 2048"
BATCH = "--micro-batch-size 1 --global-batch-size 32 --bf16 --vocab-size 32000"

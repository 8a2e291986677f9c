"""One step on many ranks: gradients in groups that overlap backward, exact evaluation, checkpoints that lose nothing.

Built on DDP, FSDP2 and DCP of torch. It takes any iterable of batches and knows neither where they come from (`feed`)
nor who started the ranks (`launch`); `api` brings them together.
"""

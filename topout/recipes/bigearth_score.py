"""How good scores of several labels a patch are: F1, micro and macro, and mean average precision.

All from sums and rows over the whole set, so the figures are those of one process at any number of ranks. Labels that
no patch of the set has are left out of both means: nothing is known about them.
"""

import torch


def label_counts(are_guessed, are_true):
    """Three rows of counts by label: guessed and true, guessed, true. Whole numbers, which batches add exactly."""
    return torch.stack([(are_guessed & are_true).sum(0), are_guessed.sum(0), are_true.sum(0)])


def f1_scores(counts):
    """Micro: of all labels together; macro: the mean of the labels' own."""
    both, guessed, true = counts.double()
    each = 2 * both / (guessed + true).clamp(min=1)
    micro = 2 * both.sum() / (guessed + true).sum().clamp(min=1)
    return {"f1_micro": micro.item(), "f1_macro": each[true > 0].mean().item()}


def average_precision(scores, are_true):
    """Of one label: precision at the rank of each patch that has it, on average; equal scores have one rank."""
    order = scores.argsort(descending=True, stable=True)
    scores, hits = scores[order], are_true[order].double()
    precision = hits.cumsum(0) / torch.arange(1, len(hits) + 1, device=hits.device)
    # a tie is taken whole: its members have the precision at its end
    _, lengths = torch.unique_consecutive(scores, return_counts=True)
    ends = lengths.cumsum(0) - 1
    return (precision[ends].repeat_interleave(lengths) * hits).sum().item() / hits.sum().item()


def mean_average_precision(scores, are_true):
    """Over the labels that occur; `scores` and `are_true` have a row a patch and a column a label."""
    occurring = are_true.any(0).nonzero().flatten().tolist()
    each = [average_precision(scores[:, label], are_true[:, label]) for label in occurring]
    return sum(each) / max(1, len(each))

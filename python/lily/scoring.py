"""Log-probabilities of labels after a prompt."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from .session import Session


def log_softmax(logits: NDArray[np.float32]) -> NDArray[np.float64]:
    """Natural log-probabilities [vocab_size] of logits [vocab_size]."""
    shifted: NDArray[np.float64] = logits.astype(np.float64) - logits.max()
    return shifted - float(np.log(np.exp(shifted).sum()))


def score_labels(session: Session, prompt: Sequence[int], labels: Sequence[Sequence[int]]) -> list[float]:
    """Log-probability of each label (token ids, at least one) after the prompt, with an empty session."""
    session.prefill(prompt)
    first = log_softmax(session.logits)
    scores = []
    for label in labels:
        score = first[label[0]]
        if len(label) > 1:
            session.prefill(prompt)  # back from the label before
        for token_id, following in pairwise(label):
            session.decode(token_id)
            score += log_softmax(session.logits)[following]
        scores.append(float(score))
    return scores

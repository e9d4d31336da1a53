"""Which lessons are about one thing: likeness by words, and groups for a reader. Pure.

Words decide the subject of a lesson and characters do not. docs/results/lessons.md has the recall
of planted pairs, which say the same in other words or contradict each other, for this measure and
for others.
"""

from __future__ import annotations

import math
import random
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from combee_dspy.texts import normalised

_WORD = re.compile(r"\w+")
# Distances of all pairs are held at once: 64 MB for so many texts.
_MOST_TEXTS = 4_000
# Texts that share nothing are not about one thing.
_NOTHING_SHARED = 1.0 - 1e-6
# How far chance moves the weight of a word, as a factor, so that each level brings other pairs
# together.
_LEAST_FACTOR, _MOST_FACTOR = 0.5, 1.5
# How many of the older texts a fresh one brings along.
_NEIGHBOURS = 12
# What an example shares with a text that it is about, as a part of the most that it shares.
_NEARLY = 0.8


def word_vectors(texts: Sequence[str], stream: random.Random | None = None) -> Any:
    """Return a sparse matrix with a row of length 1 for each text: its weighted words.

    A weight is (1 + ln count) · ln(1 + n / holders)². The usual tf-idf has no square: with it, a
    rare word that names the subject outweighs several common ones, which a form of words brings
    along. A text without a word has a row of zeros.

    Args:
        texts: The texts.
        stream: Where chance comes from that moves the weight of each word; ``None`` for none.

    Returns:
        A ``scipy.sparse`` CSR matrix of shape (n, distinct words). The product of two rows is their
        similarity, 0 to 1.
    """
    from scipy import sparse

    counts = [Counter(_WORD.findall(normalised(text))) for text in texts]
    holders = Counter(word for words in counts for word in words)
    column = {word: number for number, word in enumerate(holders)}
    rarity = {word: math.log(1 + len(texts) / count) ** 2 for word, count in holders.items()}
    if stream is not None:
        rarity = {
            word: weight * stream.uniform(_LEAST_FACTOR, _MOST_FACTOR)
            for word, weight in rarity.items()
        }
    rows: list[int] = []
    columns: list[int] = []
    weights: list[float] = []
    for row, words in enumerate(counts):
        weighted = {word: (1 + math.log(count)) * rarity[word] for word, count in words.items()}
        length = math.hypot(*weighted.values()) or 1.0
        rows += [row] * len(weighted)
        columns += [column[word] for word in weighted]
        weights += [weight / length for weight in weighted.values()]
    return sparse.csr_matrix((weights, (rows, columns)), shape=(len(texts), len(holders)))


def deal_alike(
    texts: Sequence[str], fresh: Iterable[int], most: int, stream: random.Random
) -> list[tuple[int, ...]]:
    """Return groups of like texts, so that fresh texts meet those that are nearest to them.

    Texts are clustered by average linkage of the cosine similarity of their words; clusters are
    joined as long as they have room for each other, the most alike first. Clusters without a fresh
    text are left out, small ones share a group. Another stream weighs words in another way, so that
    other pairs meet.

    Args:
        texts: All texts.
        fresh: Positions of those to be grouped. Of the others, those that are nearest to a fresh
            one come along.
        most: The most texts in a group, at least 2.
        stream: Where chance comes from.

    Returns:
        Positions, ascending within each group, each position once. Groups of one are left out.
    """
    fresh = set(fresh)
    members = _with_neighbours(texts, fresh, stream)
    stream.shuffle(members)
    clusters: list[list[int]] = []
    for start in range(0, len(members), _MOST_TEXTS):
        part = sorted(members[start : start + _MOST_TEXTS])
        dealt = _clusters(word_vectors([texts[place] for place in part], stream), most)
        clusters += [[part[place] for place in cluster] for cluster in dealt]
    return _packed(
        [cluster for cluster in clusters if len(cluster) > 1 and fresh.intersection(cluster)], most
    )


def nearest(query: str, texts: Sequence[str], most: int) -> list[int]:
    """Return the positions of the texts that share most words with a query, nearest first."""
    if not texts:
        return []
    vectors = word_vectors([query, *texts])
    near = (vectors[1:] @ vectors[0].T).toarray().ravel().round(6)
    return [place for place in (-near).argsort(kind="stable").tolist()[:most] if near[place] > 0]


def about_none(texts: Sequence[str], examples: Sequence[str]) -> list[int]:
    """Return the positions of the texts that no example is about, ascending.

    An example is about the text that shares most words with it, and about those that share nearly
    as many: four fifths.
    """
    vectors = word_vectors([*examples, *texts])
    near = (vectors[len(examples) :] @ vectors[: len(examples)].T).toarray().round(6)
    most = near.max(axis=0, initial=0.0)
    is_about = ((near >= _NEARLY * most) & (most > 0)).any(axis=1)
    return [place for place, is_any in enumerate(is_about.tolist()) if not is_any]


def _with_neighbours(texts: Sequence[str], fresh: set[int], stream: random.Random) -> list[int]:
    """Return the fresh positions and their nearest older ones, ascending."""
    older = [place for place in range(len(texts)) if place not in fresh]
    if not fresh or not older:
        return sorted(fresh)
    vectors = word_vectors(texts, stream)
    near = (vectors[sorted(fresh)] @ vectors[older].T).toarray()
    nearest = (-near).argsort(axis=1, kind="stable")[:, :_NEIGHBOURS]
    return sorted(fresh | {older[column] for column in nearest.ravel().tolist()})


def _clusters(vectors: Any, most: int) -> list[list[int]]:
    """Return clusters of at most ``most`` rows by average linkage.

    Rows that share nothing stay apart.
    """
    # Not above: who only reads a journal would load it for nothing.
    import numpy as np
    from scipy.cluster.hierarchy import linkage
    from scipy.spatial.distance import squareform

    count = vectors.shape[0]
    if count < 2:
        return [[row] for row in range(count)]
    distances = np.clip(1.0 - (vectors @ vectors.T).toarray(), 0.0, None)
    np.fill_diagonal(distances, 0.0)
    open_clusters: dict[int, list[int]] = {row: [row] for row in range(count)}
    closed: list[list[int]] = []
    steps = linkage(squareform(distances, checks=False), "average")
    for number, (first, second, distance, _) in enumerate(steps.tolist(), start=count):
        pair = [
            open_clusters.pop(int(name)) for name in (first, second) if int(name) in open_clusters
        ]
        if len(pair) == 2 and sum(map(len, pair)) <= most and distance < _NOTHING_SHARED:
            open_clusters[number] = pair[0] + pair[1]
        else:
            closed += pair
    return [sorted(cluster) for cluster in (*closed, *open_clusters.values())]


def _packed(clusters: list[list[int]], most: int) -> list[tuple[int, ...]]:
    """Return groups of whole clusters, the largest first, each where there is room for it."""
    groups: list[list[int]] = []
    for cluster in sorted(clusters, key=lambda cluster: (-len(cluster), cluster)):
        home = next((group for group in groups if len(group) + len(cluster) <= most), None)
        if home is None:
            groups.append(list(cluster))
        else:
            home += cluster
    return [tuple(sorted(group)) for group in groups]

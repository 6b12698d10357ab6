"""Drop documents that repeat earlier ones, to the letter or nearly, in one corpus and against corpora made before.

In four steps:

1. ``Signer(settings, reader, signatures)`` is called with each shard and writes NUMBER.npy (``KEYS``) into the
   directory ``signatures``: the keys of the documents of the shard, in the order in which ``reader`` gives them.
2. ``finder = Finder(settings, shards, signatures, directory, against)`` once all are signed. ``finder.comparer`` is
   called with each of ``finder.comparisons``, which are shards of keys, and writes NUMBER.pairs.npy (``PAIRS``) into
   ``directory``: which documents have an equal key.
3. ``finder.drop(reader, examples=...)`` is called once with a ``documents.Reader``: it writes NUMBER.drop.npy for each
   shard, last ``FOUND`` with the counts, which ``DuplicateCounts.load(directory)`` gives.
4. ``finder.save_keys(prefix)`` keeps the keys of the documents left, as PREFIX.signatures.npy and .json, to hold later
   corpora ``against``.

1 and 2 are stages over shards, 3 is a stage of one process; results appear whole or not at all. ``settings`` is a
``Deduplication``. Of documents that repeat each other the first in input order stays; those of corpora made before come
first and are never dropped. Modules: ``settings``, ``sign``, ``compare``, ``find``, ``report``.
"""

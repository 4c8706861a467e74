"""Training of embedding tables that are larger than the memory given to them.

Data come in parts, each with its keyset. Before a part the rows of its keys are loaded, with their optimizers' states,
and all others go to files. A row that was never loaded begins as it would have without files, so training has the same
result as with room for all rows.

Local and LazyGlobal updates, and all of SGD and AdaGrad, leave rows alone that a batch does not look up. Global updates
of Adam, MomentumSGD and Nesterov move all rows. A row in a file remembers the step up to which it was updated, and the
steps since then are made up for when it is loaded, for training or evaluation, or saved: see ``missed_steps``. With a
momentum this costs a loaded row one closed form, with Adam a pass over its vector and moments for each missed step, but
for no more than 340 of them with the usual β1 and β2. Saving costs as much for every row that is not loaded.
"""

from __future__ import annotations

import shutil
import tempfile
import weakref
from pathlib import Path

import torch
import torch.distributed as dist

from hugectr.data.keyset import read_keyset
from hugectr.embedding.hashed_rows import HashedRows
from hugectr.embedding.missed_steps import MissedSteps, moves_all_rows
from hugectr.embedding.records import stored_type
from hugectr.embedding.sharded_embeddings import ShardedEmbeddings
from hugectr.embedding.stored_rows import StoredRows
from hugectr.exceptions import EmbeddingOverflowError, HugeCtrError
from hugectr.preconditions import check_tables


class ModelOversubscriber:
    """Loads the rows of a keyset into the tables' room, max_vocabulary_size_per_gpu, and stores the others.

    All ranks call every method together.
    """

    def __init__(self, embeddings: ShardedEmbeddings, temp_embedding_dir: str, *, is_64_bit: bool) -> None:
        """Let rows that are not loaded be kept in ``temp_embedding_dir``.

        Each rank makes a folder of its own there, so that sessions which are given one folder do not meet. It is
        removed when the oversubscriber is closed, with the embeddings, or at the end of the program.

        Raises:
            HugeCtrError: the folder is not named or not writable, or the tables cannot be loaded in part.
        """
        check_tables(embeddings.model)
        if not temp_embedding_dir:
            raise HugeCtrError("temp_embedding_dir is empty; the model oversubscriber needs a writable folder")
        self._embeddings = embeddings
        self._is_64_bit = is_64_bit
        folder = _own_folder(Path(temp_embedding_dir), embeddings.rank)
        self._end = weakref.finalize(embeddings, shutil.rmtree, folder, ignore_errors=True)
        self._stored: list[tuple[HashedRows, StoredRows]] = []
        for number, store in enumerate(embeddings.stores):
            optimizer = store.table.optimizer
            if optimizer is not None and moves_all_rows(optimizer):
                store.table.missed_steps = MissedSteps(optimizer)
            for rows in store.tables:
                assert isinstance(rows, HashedRows)
                path = folder / f"{rows.shard.name}.store{number}.rows"
                stored = StoredRows(path, stored_type(optimizer, store.width))
                rows.source = stored
                self._stored.append((rows, stored))

    def close(self) -> None:
        """Remove the files; the rows in them are lost."""
        self._end()

    def update(self, keyset_file: str | list[str]) -> None:
        """Load the rows of a keyset; all others go to files.

        Args:
            keyset_file: one keyset for all embedding layers, or a list with each layer's own.

        Raises:
            DataError: a keyset is missing or torn.
            EmbeddingOverflowError: a table has no room for its keys of the keyset.
            HugeCtrError: the list has another length than the model has embedding layers.
        """
        layers = self._embeddings.model.embeddings
        files = [keyset_file] * len(layers) if isinstance(keyset_file, str) else keyset_file
        if len(files) != len(layers):
            raise HugeCtrError(f"{len(files)} keysets for {len(layers)} embedding layers; give one, or each its own")
        keysets = {file: torch.from_numpy(read_keyset(Path(file), is_64_bit=self._is_64_bit)) for file in set(files)}
        file_of = {layer.name: file for layer, file in zip(layers, files, strict=True)}
        excess = torch.zeros(1, dtype=torch.int64)
        for rows, stored in self._stored:
            rows.unload()
            keys = keysets[file_of[rows.shard.layer]]
            known = keys[stored.holds(keys)]
            excess = torch.maximum(excess, torch.tensor([len(known) - rows.shard.capacity]))
            rows.load(known.to(rows.table.weights.device))
        dist.all_reduce(excess, dist.ReduceOp.MAX, group=self._embeddings.group)
        if int(excess) > 0:
            raise EmbeddingOverflowError(
                f"{', '.join(sorted(set(files)))}: a table has {int(excess)} keys more than room; raise "
                "max_vocabulary_size_per_gpu, or split the data into more parts"
            )


def _own_folder(folder: Path, rank: int) -> Path:
    """Make a folder that no other session has.

    Raises:
        HugeCtrError: the folder around it is not writable.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return Path(tempfile.mkdtemp(prefix=f"rank{rank}.", dir=folder))
    except OSError as error:
        raise HugeCtrError(f"temp_embedding_dir {folder} is not writable: {error.strerror}") from None

"""One compressed archive of texts, from which every secret was taken."""

import io
import os
import tarfile
import time
from collections.abc import Mapping
from pathlib import Path

from neuron_pd.doctor.support.secrets import Secrets
from neuron_pd.errors import UsageError


def write(path: Path, members: Mapping[str, str], secrets: Secrets) -> None:
    """A new .tar.gz with a directory of these files, for this user only. UsageError where it cannot be made."""
    top = path.name.removesuffix(".tar.gz")
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        raise UsageError(f"cannot write the archive to {path}: {error.strerror}; choose another --out") from error
    with os.fdopen(descriptor, "wb") as stream, tarfile.open(fileobj=stream, mode="w:gz") as archive:
        for name, text in members.items():
            data = secrets.without(text).encode(errors="backslashreplace")
            entry = tarfile.TarInfo(f"{top}/{name}")
            entry.size, entry.mode, entry.mtime = len(data), 0o600, int(time.time())
            archive.addfile(entry, io.BytesIO(data))

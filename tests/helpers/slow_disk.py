"""A slow disk: a shim, compiled at run time, that delays fsync and fdatasync of the files in a folder at random."""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

SHIM = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static void stall(int fd) {
    char name[64], path[4096];
    const char *folder = getenv("STALL_FOLDER"), *rule = getenv("STALL_RULE");
    snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(name, path, sizeof path - 1);
    if (n < 0 || folder == NULL || rule == NULL) return;
    path[n] = 0;
    if (strncmp(path, folder, strlen(folder))) return;
    FILE *file = fopen(rule, "r");
    if (file == NULL) return;
    double share = 0;
    int milliseconds = 0, fields = fscanf(file, "%lf %d", &share, &milliseconds);
    fclose(file);
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    if (fields == 2 && now.tv_nsec / 1000 % 1000 < 1000 * share) usleep(1000 * milliseconds);
}

#define SHADOW(call)                                                       \
    int call(int fd) {                                                     \
        static int (*real)(int);                                           \
        if (real == NULL) real = (int (*)(int))dlsym(RTLD_NEXT, #call);    \
        stall(fd);                                                         \
        return real(fd);                                                   \
    }
SHADOW(fsync)
SHADOW(fdatasync)
"""


class SlowDisk:
    """Stalls of the processes that run with `environment` when they sync a file below `folder`."""

    def __init__(self, folder):
        if shutil.which("cc") is None:
            pytest.skip("No C compiler is installed (Debian: gcc)")
        self._own = Path(tempfile.mkdtemp(prefix="shim"))
        self._own.chmod(0o755)  # PostgreSQL runs as another user
        code, library, self._rule = self._own / "shim.c", self._own / "shim.so", self._own / "rule"
        code.write_text(SHIM)
        subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", library, code, "-ldl"], check=True)
        self.set(0.0, 0)
        self.environment = {
            "LD_PRELOAD": str(library),
            "STALL_FOLDER": os.fspath(folder),
            "STALL_RULE": str(self._rule),
        }

    def set(self, share, milliseconds):
        """Delay this share of the syncs from now on."""
        part = self._rule.with_suffix(".part")
        part.write_text(f"{share} {milliseconds}")
        part.rename(self._rule)

    def close(self):
        """Delete the shim."""
        shutil.rmtree(self._own)

import numba.core.caching as caching

from departing.kernels.compiling import kernel


def plus_one(x):
    return x + 1


def test_kernels_compile_where_no_cache_folder_is_writable(monkeypatch):
    monkeypatch.setattr(caching.CompileResultCacheImpl, "_locator_classes", [])
    assert kernel(plus_one)(2) == 3

"""Compilers of numba that optimise an inner kernel once, as a part of each kernel that it is called by.

By default numba optimises every function and translates it to machine code by itself, and then again with each of its
callers. Here a function that only kernels call stays as it is written, and LLVM sees it as a part of the whole. That
and fewer kernels save two fifths of the time to compile the planner (`benchmarks/startup.py`). The classes use
internals of numba; `SUPPORTED` is False where a version of numba lacks one of them, and kernels are then compiled as
by default.
"""

from typing import Any

from llvmlite.binding import Linkage
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler, Flags

_USED = ("_optimize_functions", "_optimize_final_module", "_finalize_dynamic_globals", "_raise_if_finalized")
SUPPORTED = hasattr(Flags(), "_values") and all(
    hasattr(JITCodeLibrary, name) for name in (*_USED, "finalize", "add_linking_library")
)


class _KernelCode(JITCodeLibrary):
    """Code of a kernel, optimised as a whole with that of the functions it calls."""

    def _optimize_final_module(self) -> None:
        """Optimise, with the called functions private: those called once are inlined, unused arguments dropped."""
        for function in self._final_module.functions:
            if not function.is_declaration and function.linkage == Linkage.linkonce_odr:
                function.linkage = Linkage.internal
        super()._optimize_final_module()

    def add_linking_library(self, library: Any) -> None:
        """Link the code of a called function, and of those that it calls."""
        for each in (library, *library.called) if isinstance(library, _InnerCode) else (library,):
            if each not in self._linking_libraries:
                super().add_linking_library(each)


class _InnerCode(_KernelCode):
    """Code of an inner kernel, neither optimised nor translated."""

    def _optimize_functions(self, ll_module: Any) -> None:
        """Leave single functions as they are: optimising the whole includes all that this would do."""
        ll_module.data_layout = self._codegen._data_layout

    @property
    def called(self) -> list[Any]:
        """Code of the functions that it calls, directly or not."""
        return list(self._linking_libraries)

    def finalize(self) -> None:
        """End changes."""
        self._raise_if_finalized()
        for each in self._linking_libraries:
            self._reload_init.update(each._reload_init)
        self._finalize_dynamic_globals()
        self._finalized = True

    def get_pointer_to_function(self, name: str) -> int:
        """Null, because there is no machine code."""
        return 0


class _InnerCodegen:
    """The code generator of numba, without environments: they would be set in machine code."""

    def __init__(self, codegen: Any) -> None:
        self._codegen = codegen

    def __getattr__(self, name: str) -> Any:
        return getattr(self._codegen, name)

    def set_env(self, env_name: str, env: Any) -> None:
        """Do nothing: an inner kernel has no Python entry point, which alone needs an environment."""


class _KernelFlags(Flags):
    """Options of numba that are compared quickly: it looks them up for each operation of each kernel."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _KernelFlags):
            return NotImplemented
        return self is other or self._values == other._values or self.values() == other.values()

    def __hash__(self) -> int:
        return 0  # equal for equal options; the keys of the lookups have other parts that differ


class KernelCompiler(Compiler):
    """Compiler of kernels that call inner ones."""

    def compile_extra(self, func: Any) -> Any:
        """Compile a Python function."""
        self.state.flags = _KernelFlags(self.state.flags)
        self.state.library = _KernelCode(self.state.targetctx.codegen(), func.__qualname__)
        self.state.library.enable_object_caching()
        return super().compile_extra(func)


class InnerCompiler(Compiler):
    """Compiler of inner kernels."""

    def compile_extra(self, func: Any) -> Any:
        """Compile a Python function as far as its callers need it."""
        self.state.flags = _KernelFlags(self.state.flags)
        self.state.library = _InnerCode(_InnerCodegen(self.state.targetctx.codegen()), func.__qualname__)
        return super().compile_extra(func)
